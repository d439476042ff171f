"""The book on paper: every built page printed by Chromium, and all joined to one PDF.

Pages come in the order of the table of contents, with a title page, contents with page numbers,
bookmarks, and page numbers at the foot. Links between pages lead to places in the PDF, links to
elsewhere stay. A chart is printed as drawn, in vectors, at the moment at which its page opens; a
folded solution is open. Folded code is left out: it draws what stands below it, and a sheet of
paper cannot unfold it. Formulas and tables that are wider than the column are made smaller; if
anything still leaves the column, there is no PDF but an error that names it.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from .chapters import BookError, Exit, parse_yaml, toc_pages
from .pages import built_site

if TYPE_CHECKING:
    from pypdf import PageObject, PdfReader, PdfWriter
    from pypdf.generic import ArrayObject

Target = tuple[Path, str]  # a page of the site, and an id in it or nothing

#: Paper and its margins, in millimetres: A4.
WIDTH, HEIGHT, SIDE, TOP, BOTTOM = 210, 297, 20, 18, 22
_CSS_PIXELS = 96 / 25.4  # to a millimetre
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


@dataclass
class Sheet:
    """A page of the site on paper.

    Attributes
    ----------
    file : Path
        The page as HTML.
    pdf : bytes
    headings : list of dict
        ``level`` (1 or 2), ``text`` and ``id``, as they come.
    hidden : dict
        Ids of places that are not printed, to the id of what is printed around them.
    clipped : list of str
        What leaves the column, is cut off in it, or had to become too small to read.
    lost : list of str
        Links within the page that lead to no place in it.
    """

    file: Path
    pdf: bytes
    headings: list[dict[str, Any]]
    hidden: dict[str, str]
    clipped: list[str]
    lost: list[str]

    @property
    def title(self) -> str:
        """Text of the first heading."""
        return self.headings[0]["text"] if self.headings else self.file.stem


class Place(NamedTuple):
    """A place in the body of the book: page, counted from 0, and points from its lower left."""

    page: int
    left: float
    top: float


def print_book(root: Path, output: Path) -> int:
    """Write the built book as one PDF; returns its number of pages.

    Raises
    ------
    BookError
        If the site is not built or older than its sources, Chromium is missing, something does
        not fit the paper, or a link leads to no place in the book.
    """
    from pypdf import PdfReader

    site = built_site(root)
    program = chromium()
    parts = [(name, [site / f"{page}.html" for page in pages]) for name, pages in read_parts(root)]
    sheets = print_pages(program, [file for _, pages in parts for file in pages])
    clipped = [f"{sheet.file.stem}: {what}" for sheet in sheets for what in sheet.clipped]
    if clipped:
        raise BookError("\n".join(["These do not fit the paper:", *clipped]))
    config = parse_yaml((root / "_config.yml").read_text(encoding="utf-8"), "_config.yml")
    about = {"/Title": str(config["title"]), "/Author": str(config.get("author", ""))}
    printed = [PdfReader(io.BytesIO(sheet.pdf)) for sheet in sheets]
    places = find_places(sheets, printed)
    opening = contents_page(about["/Title"], about["/Author"], parts, sheets, places)
    front = PdfReader(io.BytesIO(print_html(program, opening)))
    feet = [(about["/Title"], roman(k + 1) if k else "") for k in range(len(front.pages))]
    titles = [sheet.title for sheet, pdf in zip(sheets, printed, strict=True) for _ in pdf.pages]
    feet += [(title, str(k)) for k, title in enumerate(titles, 1)]
    stamps = PdfReader(io.BytesIO(print_html(program, feet_page(feet))))
    book = join([front, *printed], stamps, len(front.pages))
    lost = [f"{sheet.file.stem}: {name}" for sheet in sheets for name in sheet.lost]
    lost += link(book, site, places, len(front.pages))
    if lost:
        raise BookError("\n".join(["Links that lead to no place in the book:", *lost]))
    add_bookmarks(book, parts, sheets, places, len(front.pages))
    book.metadata = about
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        book.write(temporary)
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    return len(book.pages)


def chromium() -> str:
    """The browser that prints: what ``CHROMIUM`` names, or the first that is installed."""
    named = os.environ.get("CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if found is None:
        raise BookError(
            f"No browser to print with: {named or 'Chromium'} was not found. Install Chromium "
            f"(Debian: apt-get install chromium), or name one in the variable CHROMIUM.",
            Exit.MISSING,
        )
    return found


def read_parts(root: Path) -> list[tuple[str, list[str]]]:
    """Parts of the book and their pages, in reading order; the first part is the root alone."""
    contents = parse_yaml((root / "_toc.yml").read_text(encoding="utf-8"), "_toc.yml")
    order = toc_pages(root)

    def inside(entry: Any) -> Iterable[str]:
        if isinstance(entry, dict):
            for key, value in entry.items():
                yield from [value] if key == "file" else inside(value)
        elif isinstance(entry, list):
            for item in entry:
                yield from inside(item)

    parts = [
        (str(part.get("caption", "")), list(inside(part))) for part in contents.get("parts", [])
    ]
    named = {page for _, pages in parts for page in pages}
    return [("", [page for page in order if page not in named]), *parts]


# --- Printing ------------------------------------------------------------------------------------


def print_pages(program: str, files: Sequence[Path]) -> list[Sheet]:
    """Print pages of the site, several at a time; `program` is the browser."""
    return asyncio.run(_print_pages(program, files))


async def _print_pages(program: str, files: Sequence[Path]) -> list[Sheet]:
    from playwright.async_api import async_playwright

    script = Path(__file__).with_name("paper.js").read_text(encoding="utf-8")
    script = script[script.index("async () =>") :]
    margins: Any = {"top": f"{TOP}mm", "bottom": f"{BOTTOM}mm"}
    margins |= {"left": f"{SIDE}mm", "right": f"{SIDE}mm"}
    several = asyncio.Semaphore(max(1, min(4, os.cpu_count() or 1)))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        context = await browser.new_context(
            viewport={"width": round((WIDTH - 2 * SIDE) * _CSS_PIXELS), "height": 960},
            color_scheme="light",
            reduced_motion="reduce",
            device_scale_factor=3,  # for charts on a canvas: about 300 dots an inch
        )

        context.set_default_timeout(120_000)  # milliseconds: the machine may be busy

        async def make(file: Path) -> Sheet:
            async with several:
                page = await context.new_page()
                await page.emulate_media(media="print")
                await page.goto(file.as_uri())
                told = await page.evaluate(script)
                pdf = await page.pdf(
                    width=f"{WIDTH}mm",
                    height=f"{HEIGHT}mm",
                    margin=margins,
                    print_background=True,
                )
                await page.close()
            return Sheet(file, pdf, **told)

        try:
            return await asyncio.gather(*(make(file) for file in files))
        finally:
            await browser.close()


def print_html(program: str, text: str) -> bytes:
    """Print a page of our own, whose style says where its margins are."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        page = browser.new_page()
        page.set_content(text)
        pdf = page.pdf(prefer_css_page_size=True, print_background=True)
        browser.close()
    return pdf


def contents_page(
    title: str,
    author: str,
    parts: Sequence[tuple[str, Sequence[Path]]],
    sheets: Sequence[Sheet],
    places: Mapping[Target, Place],
) -> str:
    """Title page and table of contents, as HTML whose links are those of the site."""
    by_file = {sheet.file: sheet for sheet in sheets}
    lines = []
    for name, files in parts:
        if name:
            lines.append(f'<p class="part">{escape(name)}</p>')
        for sheet in (by_file[file] for file in files):
            for heading in sheet.headings:
                place = places.get((sheet.file, heading["id"])) or places[sheet.file, ""]
                lines.append(
                    f'<p class="level-{heading["level"]}">'
                    f'<a href="{escape(sheet.file.as_uri())}#{quote(heading["id"])}">'
                    f"<span>{escape(heading['text'])}</span><i></i>{place.page + 1}</a></p>"
                )
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><style>
@page {{ size: {WIDTH}mm {HEIGHT}mm; margin: {TOP}mm {SIDE}mm {BOTTOM}mm; }}
body {{ margin: 0; font: 10.5pt/1.45 system-ui, "DejaVu Sans", sans-serif; }}
.title {{ break-after: page; padding-top: 75mm; }}
h1 {{ font-size: 34pt; font-weight: 500; margin: 0 0 6mm; }}
h2 {{ font-size: 20pt; font-weight: 500; margin: 0 0 6mm; }}
.title p {{ max-width: 120mm; }}
.small {{ margin-top: 90mm; font-size: 9pt; color: #57606a; }}
.contents p {{ margin: 0; break-inside: avoid; }}
.contents .part {{ margin: 5mm 0 1mm; font-weight: 600; break-after: avoid; }}
.contents .level-1 {{ margin-top: 1.2mm; }}
.contents .level-2 {{ padding-left: 6mm; font-size: 9pt; color: #57606a; }}
.contents a {{ color: inherit; text-decoration: none; display: flex; align-items: baseline; }}
.contents i {{ flex: 1 0 8mm; border-bottom: 1px dotted #8c959f; margin: 0 2mm; }}
</style><section class="title"><h1>{escape(title)}</h1>
<p>An executable edition of arXiv:2608.30315. Every number is computed by the code of its page,
every chart is drawn from these numbers, every claim stands with its threshold and its verdict.</p>
<p>{escape(author)}</p>
<p class="small">On paper, charts stand at the moment at which their page opens, solutions are
unfolded, and folded code, which draws or tabulates what stands below it, is left out: the pages of
the site and its notebooks have it.</p></section>
<section class="contents"><h2>Contents</h2>{"".join(lines)}</section></html>"""


def feet_page(feet: Sequence[tuple[str, str]]) -> str:
    """A sheet for each page of the book that holds its foot alone: title and page number."""
    sheets = "".join(
        f"<section><p><span>{escape(title)}</span><b>{number}</b></p></section>"
        if number
        else "<section></section>"
        for title, number in feet
    )
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><style>
@page {{ size: {WIDTH}mm {HEIGHT}mm; margin: 0; }}
body {{ margin: 0; font: 8.5pt/1.3 system-ui, "DejaVu Sans", sans-serif; color: #57606a; }}
section {{ height: {HEIGHT}mm; position: relative; break-after: page; overflow: hidden; }}
section:last-child {{ break-after: auto; }}
p {{ position: absolute; left: {SIDE}mm; right: {SIDE}mm; bottom: {BOTTOM / 2 - 2}mm; margin: 0;
  display: flex; justify-content: space-between; gap: 10mm; }}
b {{ font-weight: 500; }}
</style>{sheets}</html>"""


def roman(number: int) -> str:
    """A small number as front matter counts: ``iv``."""
    signs = ((10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))
    text = ""
    for value, sign in signs:
        while number >= value:
            text, number = text + sign, number - value
    return text


# --- Joining -------------------------------------------------------------------------------------


def find_places(sheets: Sequence[Sheet], printed: Sequence[PdfReader]) -> dict[Target, Place]:
    """Where each id of each page came to stand; the id ``""`` is the page's beginning."""
    places: dict[Target, Place] = {}
    start = 0
    for sheet, pdf in zip(sheets, printed, strict=True):
        numbers = {page.indirect_reference.idnum: k for k, page in enumerate(pdf.pages)}  # pyright: ignore
        places[sheet.file, ""] = Place(start, 0.0, float(pdf.pages[0].mediabox.top))
        for name, found in pdf.named_destinations.items():
            number = numbers[found.raw_get("/Page").idnum]
            left, top = (float(found[key]) for key in ("/Left", "/Top"))  # pyright: ignore
            places[sheet.file, unquote(name.lstrip("/"))] = Place(start + number, left, top)
        for hidden, shown in sheet.hidden.items():
            if (sheet.file, shown) in places:
                places[sheet.file, hidden] = places[sheet.file, shown]
        start += len(pdf.pages)
    return places


def join(documents: Sequence[PdfReader], stamps: PdfReader, front: int) -> PdfWriter:
    """All pages in one document, each with its stamp; the first `front` count in Roman numerals."""
    from pypdf import PdfWriter
    from pypdf.constants import PageLabelStyle

    book = PdfWriter()
    for document in documents:
        for page in document.pages:
            book.add_page(page)
    for page, stamp in zip(book.pages, stamps.pages, strict=True):
        _stamp(book, page, stamp)
    book.set_page_label(0, front - 1, style=PageLabelStyle.LOWERCASE_ROMAN)
    book.set_page_label(front, len(book.pages) - 1, style=PageLabelStyle.DECIMAL, start=1)
    return book


def _stamp(book: PdfWriter, page: PageObject, stamp: PageObject) -> None:
    """Draw one page on another, whose own content is left as it is."""
    from pypdf.generic import (
        ArrayObject,
        DecodedStreamObject,
        DictionaryObject,
        NameObject,
    )

    content = stamp.get_contents()
    if content is None:
        return

    def stream(data: bytes) -> DecodedStreamObject:
        made = DecodedStreamObject()
        made.set_data(data)
        return made

    form = stream(content.get_data())
    form[NameObject("/Type")] = NameObject("/XObject")
    form[NameObject("/Subtype")] = NameObject("/Form")
    form[NameObject("/BBox")] = ArrayObject(page.mediabox)
    form[NameObject("/Resources")] = stamp["/Resources"].clone(book)
    there: Any = page["/Resources"].get_object()
    resources: Any = DictionaryObject(there)
    images = DictionaryObject(resources.get("/XObject", {}))
    images[NameObject("/Foot")] = book._add_object(form)
    resources[NameObject("/XObject")] = images
    page[NameObject("/Resources")] = resources
    own = page["/Contents"].get_object()
    own = own if isinstance(own, ArrayObject) else [page.raw_get("/Contents")]
    before, after = (book._add_object(stream(data)) for data in (b"q\n", b"\nQ q /Foot Do Q\n"))
    page[NameObject("/Contents")] = ArrayObject([before, *own, after])


def link(book: PdfWriter, site: Path, places: Mapping[Target, Place], front: int) -> list[str]:
    """Make links between pages of the site into jumps; returns those that lead to no place.

    Links to files of the site that are no pages of the book, such as reports, become plain text.
    """
    from pypdf.generic import ArrayObject, NameObject

    lost: list[str] = []
    start = {file: places[file, ""].page for file, name in places if not name}
    ends = sorted((page, file) for file, page in start.items())
    for number, page in enumerate(book.pages):
        here = next((file for first, file in reversed(ends) if first <= number - front), None)
        kept = ArrayObject()
        notes: Any = page.get("/Annots", ())
        for reference in notes:
            note = reference.get_object()
            target = _target(note, here)
            if target is not None:
                file, name = target
                if (file, "") not in places:
                    if file.is_relative_to(site) and file.exists():
                        continue
                    lost.append(f"page {number - front + 1}: {file}")
                elif (file, name) not in places:
                    lost.append(f"page {number - front + 1}: {file.relative_to(site)}#{name}")
                else:
                    note.pop("/A", None)
                    note[NameObject("/Dest")] = _destination(book, places[file, name], front)
            kept.append(reference)
        if "/Annots" in page:
            page[NameObject("/Annots")] = kept
    return lost


def _target(note: Any, here: Path | None) -> Target | None:
    """File and id that a link leads to, if it leads to the disk; None for any other."""
    if "/Dest" in note and here is not None:
        return here, unquote(str(note["/Dest"]).lstrip("/"))
    address = str(note.get("/A", {}).get("/URI", ""))
    if not address.startswith("file:"):
        return None
    parts = urlsplit(address)
    name = unquote(parts.fragment)
    return Path(unquote(parts.path)), "" if "=" in name else name  # name=value: state of a page


def _destination(book: PdfWriter, place: Place, front: int) -> ArrayObject:
    from pypdf.generic import ArrayObject, FloatObject, NameObject, NullObject

    page = book.pages[front + place.page].indirect_reference
    where = [FloatObject(place.left), FloatObject(place.top), NullObject()]
    return ArrayObject([page, NameObject("/XYZ"), *where])


def add_bookmarks(
    book: PdfWriter,
    parts: Sequence[tuple[str, Sequence[Path]]],
    sheets: Sequence[Sheet],
    places: Mapping[Target, Place],
    front: int,
) -> None:
    """Parts, pages and their sections as the document's outline."""
    by_file = {sheet.file: sheet for sheet in sheets}
    shut: Any = {"is_open": False}
    for name, files in parts:
        first = front + places[files[0], ""].page
        part = book.add_outline_item(title=name, page_number=first, **shut) if name else None
        for sheet in (by_file[file] for file in files):
            page = front + places[sheet.file, ""].page
            above = book.add_outline_item(title=sheet.title, page_number=page, parent=part, **shut)
            for heading in sheet.headings[1:]:
                place = places.get((sheet.file, heading["id"]), places[sheet.file, ""])
                book.add_outline_item(
                    title=heading["text"], page_number=front + place.page, parent=above
                )
