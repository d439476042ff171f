"""Glossary, statements, the map of the paper, the bibliography and the line that ends each page."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from project import REPOSITORY, add_site, chapter, code, command, make_project

from staircase_lib import claims

BOOK = REPOSITORY / "book"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(BOOK.glob("*.md"))}
APPARATUS = {"notation", "glossary", "map", "bibliography", "reference"}
CHAPTERS = {name: text for name, text in PAGES.items() if name not in APPARATUS}
TERM = re.compile(r"\{term\}`(?:[^`<]*<)?([^`<>]+?)>?`", re.DOTALL)


@pytest.fixture(scope="module")
def extension():
    """A Sphinx extension of the book, imported by name."""
    folder = str(BOOK / "_extensions")
    sys.path.insert(0, folder)
    yield importlib.import_module
    sys.path.remove(folder)


@pytest.fixture(scope="module")
def paper_map(extension) -> ModuleType:
    return extension("paper_map")


def prose(text: str) -> str:
    """A page without its code cells."""
    return re.sub(r"^```\{code-cell\}.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


# --- Glossary ------------------------------------------------------------------------------------


def glossary() -> dict[str, str]:
    """Terms with what stands below them."""
    body = PAGES["glossary"].partition("```{glossary}\n")[2].rpartition("```")[0]
    parts = re.split(r"^(?=[^\s:`])", body, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def test_every_term_is_explained_and_says_where_it_comes_first():
    terms = glossary()
    assert len(terms) >= 50 and list(terms) == sorted(terms, key=str.casefold)
    for term, entry in terms.items():
        assert re.search(r"\{(doc|term)\}`", entry), f"{term}: no chapter is named"
        assert len(entry.split()) >= 5 or "See {term}" in entry


def test_chapters_lead_to_the_glossary_once_a_term():
    terms, linked = set(glossary()), set()
    for name, text in CHAPTERS.items():
        found = Counter(" ".join(term.split()) for term in TERM.findall(prose(text)))
        assert set(found) <= terms, name
        assert max(found.values(), default=1) == 1, f"{name}: {found.most_common(1)}"
        linked |= set(found)
    few = [name for name, text in CHAPTERS.items() if len(TERM.findall(text)) < 2]
    assert len(few) <= 5, few  # pages of a screen, of tables
    inside = set(TERM.findall(PAGES["glossary"]))
    assert len(linked) > 35 and len(terms - linked - inside) < 8


# --- Statements and proofs -----------------------------------------------------------------------

STATEMENT = re.compile(
    r"\{prf:(theorem|proposition|lemma|definition)\}[^\n]*\n:label: (?P<label>\S+)\n"
)


def statements() -> dict[str, tuple[str, str]]:
    """Label of each statement with its kind and its page."""
    found: dict[str, tuple[str, str]] = {}
    for name, text in PAGES.items():
        for match in STATEMENT.finditer(text):
            assert match["label"] not in found
            found[match["label"]] = (match[1], name)
    return found


def test_statements_of_the_paper_keep_its_numbers_and_all_are_labelled():
    found = statements()
    labels = {label for label, (kind, _) in found.items() if kind in ("theorem", "proposition")}
    assert labels == {"thm-1", "thm-3", "prop-1", "prop-2"}
    assert len(found) >= 14
    everywhere = "".join(PAGES.values())
    assert len(re.findall(r"\{prf:(?:theorem|proposition|lemma|definition)\}", everywhere)) == len(
        found
    )


def test_every_theorem_and_lemma_has_a_proof_that_names_it_or_follows_it():
    proofs = [
        (name, match[1])
        for name, text in PAGES.items()
        for match in re.finditer(r":::\{prf:proof\}\n(.*?)\n:::", text, re.DOTALL)
    ]
    assert len(proofs) >= 10
    for label, (kind, page) in statements().items():
        named = any(
            f"{{prf:ref}}`{label}`" in body and name != page for name, body in proofs
        ) or any(body.startswith("Of ") and f"`{label}`" in body for _, body in proofs)
        box = rf":label: {label}\n.*?\n:{{3,4}}\n+:::\{{prf:proof\}}"
        follows = re.search(box, PAGES[page], re.DOTALL)
        docstring = label == "lem-softmax"  # which leads to the argument in the library
        assert kind == "definition" or named or follows or docstring, label


SITE = {
    "introduction": (
        "# Introduction\n\n{prf:ref}`thm-3`, {prf:ref}`lem-a`, {ref}`4.1 <claim-4-1>`\n\n"
        "```{run-records}\n```\n"
    ),
    "theory": chapter(
        "Theory",
        "\n:::{prf:lemma} first\n:label: lem-a\n\nOne $x$.\n:::\n\n"
        ":::{prf:proof}\nClear.\n:::\n\n:::{prf:theorem} third\n:label: thm-3\n\nThree.\n:::\n\n"
        ":::{prf:proof}\nOf {prf:ref}`thm-3`. Clear as well.\n:::\n",
    ),
    "measured": chapter(
        "Measured",
        code(
            "from IPython.display import HTML\n"
            'HTML(\'<div class="sc-claim" data-verdict="partly" id="claim-4-1">\\n\'\n'
            "     '<p class=\"sc-claim-head\"><strong>Claim 4.1</strong>: quokkas</p></div>')"
        ),
    ),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A small book with statements and a claim; returns its root."""
    root = make_project(tmp_path_factory.mktemp("apparatus"), SITE)
    add_site(root)
    command(root, "book", "--profile", "smoke", check=True)
    return root


def page(root: Path, name: str) -> str:
    return (root / "_build/html/book" / f"{name}.html").read_text(encoding="utf-8")


def test_numbers_references_and_ids_on_a_page(site):
    theory, introduction = page(site, "theory"), page(site, "introduction")
    assert re.search(r'caption-number">\s*Theorem 3\s*<', theory)
    assert re.search(r'caption-number">\s*Lemma 1\s*<', theory)
    assert re.search(r'href="theory.html#thm-3"[^>]*>Theorem 3<', introduction)
    assert re.search(r'href="theory.html#lem-a"[^>]*>Lemma 1<', introduction)
    ids = Counter(re.findall(r'\sid="([^"]+)"', theory))
    assert [name for name, times in ids.items() if times > 1] == []
    assert theory.count("<em>Proof.</em>") == 2


def test_claims_are_labels_and_in_the_search(site):
    assert 'href="measured.html#claim-4-1"' in page(site, "introduction")
    index = (site / "_build/html/searchindex.js").read_text(encoding="utf-8")
    assert re.search(r'"4\.1": \[\[\d+, "claim-4-1", true\]\]', index)
    assert re.search(r'"claim 4\.1": \[\[\d+, "claim-4-1", true\]\]', index)
    assert '"quokka"' in index  # the words of the statement


def test_every_page_says_how_it_was_made(site):
    executed, plain = page(site, "measured"), page(site, "theory")
    assert "python -m staircase_lib run measured --profile smoke</code>" in executed
    assert re.search(r"Executed 20\d\d-\d\d-\d\d \d\d:\d\d UTC at profile smoke, commit ", executed)
    assert "Nothing is executed on this page" in plain
    assert "<code>make book PROFILE=smoke</code>" in plain
    assert re.search(r"executed 20\d\d-\d\d-\d\d \d\d:\d\d UTC at profile smoke, commit ", plain)
    runs = page(site, "introduction")
    assert "<p>memory</p>" in runs and "<p>device</p>" not in runs  # the same for all runs
    assert re.findall(r"CPU cores|, with python 3", runs) == ["CPU cores", ", with python 3"]


WRONG = {
    "{prf:ref}`lem-b`": "label 'lem-b' not found",
    "{term}`quokka`": "term not in glossary: 'quokka'",
    "{ref}`claim-9-9`": "undefined label: 'claim-9-9'",
    ":::{prf:theorem} ours\n:label: thm-own\n\nText.\n:::": "the paper's number, such as thm-3",
    "```{paper-map} music\n```": "expected one of ['paper', 'beyond'], got 'music'",
}


def test_references_that_lead_nowhere_fail_the_build(site):
    """Last, since it spoils the site's sources."""
    shutil.copy(BOOK / "paper.toml", site / "book")
    with (site / "book/theory.md").open("a", encoding="utf-8") as file:
        file.write("\n" + "\n\n".join(WRONG) + "\n")
    done = command(site, "book", "--profile", "smoke")
    assert done.returncode != 0
    assert [told for told in WRONG.values() if told not in done.stdout + done.stderr] == []


# --- The map of the paper ------------------------------------------------------------------------


def test_every_claim_has_a_part_a_ledger_row_and_a_test(paper_map):
    parts = paper_map.read_parts((BOOK / "paper.toml").read_text(encoding="utf-8"))
    everything = [part for table in parts.values() for part in table]
    tests = paper_map.tests_of_claims(REPOSITORY / "tests")
    assert paper_map.gaps(everything, claims.CLAIMS, tests) == []
    assert set(paper_map.ledger_rows(REPOSITORY)) == set(claims.CLAIMS)
    for table in parts:
        assert f"```{{paper-map}} {table}\n" in PAGES["map"]


def test_every_section_that_a_claim_names_is_a_part(paper_map):
    parts = paper_map.read_parts((BOOK / "paper.toml").read_text(encoding="utf-8"))
    numbers = {part.number.partition(",")[0] for part in parts["paper"]}
    sections = {claim.section for claim in claims.CLAIMS.values()}
    chapters_of = {number.partition(".")[0] for number in numbers}
    assert sections - numbers - chapters_of == {"beyond"}
    statements_of_the_paper = {"Theorem 1", "Theorem 3", "Proposition 1", "Proposition 2"}
    assert statements_of_the_paper <= numbers


def test_a_map_with_gaps_is_told(paper_map):
    part = paper_map.Part
    parts = [part("1", "a", "b", ("4.1", "9.9")), part("2", "a", "b", ("4.1",))]
    told = paper_map.gaps(parts, ["4.1", "4.2"], {"4.1": [("f", "t")], "8.8": [("f", "t")]})
    assert told == [
        "1: claim 9.9 is not declared in claims.toml",
        "claim 4.1: expected in one part, is in 1, 2",
        "claim 4.2: expected in one part, is in none",
        'claim 4.2: no test is marked @pytest.mark.claim("4.2")',
        "claim 8.8: marked at a test, not declared",
    ]
    with pytest.raises(ValueError, match="expected number, about, book"):
        paper_map.read_parts('[[paper]]\nnumber = "1"\nabout = "x"\n')


def test_marks_are_read_from_the_tests(paper_map, tmp_path):
    (tmp_path / "test_one.py").write_text(
        'import pytest\n\n@pytest.mark.claim("4.1", "X.2")\n@pytest.mark.slow\n'
        "def test_a(): ...\n\ndef test_b(): ...\n"
    )
    (tmp_path / "helper.py").write_text('@pytest.mark.claim("5.1")\ndef test_c(): ...\n')
    found = paper_map.tests_of_claims(tmp_path)
    assert found == {"4.1": [("test_one.py", "test_a")], "X.2": [("test_one.py", "test_a")]}


# --- Bibliography --------------------------------------------------------------------------------

NEEDED = {
    "article": {"author", "title", "journal", "year"},
    "inproceedings": {"author", "title", "booktitle", "year"},
    "book": {"author", "title", "publisher", "year"},
}


def bibliography_faults(text: str, pages: str) -> list[str]:
    """What is missing in entries of BibTeX, and entries that no page cites."""
    from pybtex.database import parse_string

    cited = {
        key.strip()
        for keys in re.findall(r"\{cite(?::\w)?\}`([^`]+)`", pages)
        for key in keys.split(",")
    }
    told = []
    for key, entry in parse_string(text, "bibtex").entries.items():
        present = {name.lower() for name, value in entry.fields.items() if value.strip()}
        present |= {role for role, people in entry.persons.items() if people}
        told += [f"{key}: no {name}" for name in sorted(NEEDED[entry.type] - present)]
        if not present & {"doi", "url", "eprint", "isbn"}:
            told.append(f"{key}: neither doi, url, eprint nor isbn")
        if key not in cited:
            told.append(f"{key}: cited nowhere")
    return told


def test_entries_of_the_bibliography_are_whole_and_cited():
    text = (BOOK / "references.bib").read_text(encoding="utf-8")
    assert bibliography_faults(text, "".join(PAGES.values())) == []
    assert bibliography_faults("@article{a, title={T}, year={1}}", "{cite}`b`") == [
        "a: no author",
        "a: no journal",
        "a: neither doi, url, eprint nor isbn",
        "a: cited nowhere",
    ]


def test_new_pages_are_in_the_contents():
    contents = yaml.safe_load((REPOSITORY / "_toc.yml").read_text(encoding="utf-8"))
    files = {page["file"] for part in contents["parts"] for page in part["chapters"]}
    assert {f"book/{name}" for name in APPARATUS} <= files
