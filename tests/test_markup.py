"""What is left of marked-up text: what a reader reads, and nothing else."""

from staircase_lib.language.markup import html_text, manual_text, rst_text


def test_html_is_read_without_navigation_and_scripts():
    page = """<!DOCTYPE html><html><head><title>No</title><style>p {}</style></head><body>
<header><a>no</a><nav>no</nav></header><div class="navheader big"><div>no</div> no</div>
<div id="text"><h1>Weeks &amp; days</h1><p>Monday is <b>followed</b>
by&nbsp;Tuesday &lt;tag&gt; &#26149;.</p><script>if (a < b) { document.write("<p>no</p>") }</script>
<img src="x" alt="no"/><br/>after<table><tr><td>one</td><td>two</td></tr></table>
<pre>  kept
    as it is</pre><ul><li>first<li>second</ul></div><footer>no</footer>end</body></html>"""
    assert html_text(page).splitlines() == [
        *("Weeks & days", "Monday is followed by Tuesday <tag> \u6625.", "after", "one two"),
        *("  kept", "    as it is", "first", "second", "end"),
    ]


def test_html_that_is_broken_still_gives_its_text():
    for page in ("<p>one<p>two</div></div>", "one</pre><p>two", "<div><p>one<br>two", "one<hr>two"):
        assert html_text(page).split() == ["one", "two"]
    assert html_text("") == "" and html_text("a <!-- b --> c <") == "a c <"


def test_rst_is_read_without_directives_and_roles():
    text = """=====
Title
=====

.. note:: not this
.. _target: https://example.org
:Author: nobody

See :ref:`the page <target>`, :c:func:`kmalloc`, `a link <https://example.org>`_ and ``code``
in **bold**::

   print(1)
"""
    assert [line for line in rst_text(text).splitlines() if line.strip()] == [
        *("Title", "See the page, kmalloc, a link and code", "in bold::", "   print(1)"),
    ]


def test_manual_pages_are_read_without_requests_and_fonts():
    page = r""".\" comment
.TH LS 1 2022 "GNU" "User"
.de XX
not this
..
.SH "NAME OF IT"
ls \- \fBlist\fP \f[I]files\f[R] \(lqquoted\(rq a\e b \s-1SMALL\s0 \*(xx
.BR access (2), next
.B bold words
.IP "item one" 4
\&.dot at the start \" comment at the end
.nf
'ne 2
last\ line\&.
"""
    assert [line.strip() for line in manual_text(page).splitlines()] == [
        *("NAME OF IT", "ls - list files \u201cquoted\u201d a\\ b SMALL", "access(2),next"),
        *("bold words", "item one", ".dot at the start", "last line."),
    ]
