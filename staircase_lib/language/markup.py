"""Plain text of marked-up documents: HTML, reStructuredText, manual pages.

For counting words, not for display: what a reader reads stays, in order, without navigation,
scripts, fonts and links. Nothing is run or fetched.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

__all__ = ["html_text", "manual_text", "rst_text"]

_UNREAD = {*("head", "script", "style", "nav", "header", "footer", "aside"), *("button", "select")}
_UNREAD_CLASSES = {"navheader", "navfooter", "toc", "docnav"}  # as DocBook names them
_BLOCKS = {
    *("p", "div", "li", "ul", "ol", "dl", "dt", "dd", "tr", "table", "pre", "blockquote", "br"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "hr"),
}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self.line: list[str] = []
        self.unread: list[str] = []  # open elements of the kind that is being left out
        self.verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self.unread:
            if tag == self.unread[-1]:
                self.unread.append(tag)
            return
        classes = set((dict(attrs).get("class") or "").split())
        if tag in _UNREAD or classes & _UNREAD_CLASSES:
            self.unread.append(tag)
        elif tag in _BLOCKS:
            self.end_line()
            self.verbatim += tag == "pre"
        elif tag in ("td", "th"):
            self.line.append(" ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self.unread and tag in _BLOCKS:
            self.end_line()

    def handle_endtag(self, tag: str) -> None:
        if self.unread:
            if tag == self.unread[-1]:
                self.unread.pop()
        elif tag in _BLOCKS:
            self.end_line()
            self.verbatim = max(0, self.verbatim - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        if not self.unread:
            self.line.append(data)

    def end_line(self) -> None:
        text = "".join(self.line)
        self.line = []
        if not self.verbatim:
            text = " ".join(text.split())
        if text.strip():
            self.lines.append(text.strip("\n"))


def html_text(source: str) -> str:
    """What a reader of an HTML page reads, a block a line."""
    reader = _Reader()
    reader.feed(source)
    reader.close()
    reader.end_line()
    return "\n".join(reader.lines)


_ROLE = re.compile(r":[\w:+.-]+:`([^`<]*?)\s*(?:<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?")
_RULE = re.compile(r"^\s*[=\-~^\"'*+#.:_`]{3,}[=\-~^\"'*+#.:_`\s]*$")
_DIRECTIVE = re.compile(r"^\s*\.\.(\s|$)|^\s*:[\w -]+:(\s|$)")


def rst_text(source: str) -> str:
    """Text of reStructuredText without directives, field lists, rules, roles and targets."""
    kept = (
        line for line in source.splitlines() if not _RULE.match(line) and not _DIRECTIVE.match(line)
    )
    text = _LINK.sub(r"\1", _ROLE.sub(r"\1", "\n".join(kept)))
    return re.sub(r"``(.+?)``|\*\*(\S.*?)\*\*", lambda m: m[1] or m[2], text)


_ESCAPES = re.compile(
    r"\\(?:f(?:\[[^\]]*\]|\(..|.)|s[+-]?\d+|\*(?:\[[^\]]*\]|\(..|.)|h'[^']*'|[&,/|^%:)]|\".*$)",
    re.M,
)
_CHARACTERS = {
    **{"-": "-", "e": "\\", " ": " ", "~": " ", "'": "'", "`": "`", "0": " ", ".": ".", "\\": "\\"},
    **{"(aq": "'", "(oq": "\u2018", "(cq": "\u2019", "(lq": "\u201c", "(rq": "\u201d"},
    **{"(dq": '"', "(em": "\u2014", "(en": "\u2013", "(bu": "\u2022", "(co": "\u00a9"},
    **{"(hy": "-", "(rs": "\\", "(ha": "^", "(ti": "~", "(ga": "`", "(mc": "\u00b5"},
}
_PRINTING = {"SH", "SS", "B", "I", "R", "SM", "SB", "IP", "TP"}  # macros with text
_ALTERNATING = {"BR", "RB", "BI", "IB", "IR", "RI"}  # whose arguments are written without spaces
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"|(\S+)')


def manual_text(source: str) -> str:
    """Text of a manual page (macros of ``man``) without requests and fonts."""
    lines, skipping = [], False
    for line in source.splitlines():
        if line.startswith((".de", ".ig")):
            skipping = True
        elif skipping:
            skipping = not line.startswith("..")
        elif line[:1] in (".", "'"):
            macro, _, rest = line[1:].lstrip().partition(" ")
            found = [m[1] or m[2] or "" for m in _ARGUMENT.finditer(rest)]
            if macro in _ALTERNATING:
                lines.append("".join(found))
            elif macro in _PRINTING:
                lines.append(" ".join(found[:1] if macro == "IP" else found))
        else:
            lines.append(line)
    text = _ESCAPES.sub("", "\n".join(line for line in lines if line.strip()))
    return re.sub(r"\\(\([^\s\\]{2}|.)", lambda m: _CHARACTERS.get(m[1], ""), text)
