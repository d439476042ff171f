"""The report of a counted corpus: its numbers, and that hostile text stays text."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import vl_convert
from chart_gallery import HOSTILE_TOKENS
from project import command
from scipy import sparse

from staircase_lib import corpus_report, figures
from staircase_lib.figures.token_scatter import _WIDTHS, _placed
from staircase_lib.language import counting, summary
from staircase_lib.language.tokens import encode, prepare
from staircase_lib.printable import printable, printable_json


def hostile_tokens(folder: Path):
    """A corpus in which every hostile string is one token, and a frequent one."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from staircase_lib.language.vocabulary import SEPARATOR, UNKNOWN

    names = [SEPARATOR, UNKNOWN, *HOSTILE_TOKENS, "a", "b"]
    tokenizer = Tokenizer(
        models.WordLevel({name: k for k, name in enumerate(names)}, unk_token=UNKNOWN)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    rng = np.random.default_rng(0)
    words = [names[k] for k in rng.integers(2, len(names), 6000)]
    (folder / "corpus.jsonl").write_text(json.dumps({"text": " ".join(words)}), encoding="utf-8")
    return encode(folder / "corpus.jsonl", tokenizer, folder / "tokens")


def write_hostile_report(folder: Path) -> Path:
    """The page of a corpus of hostile tokens."""
    tokens = hostile_tokens(folder)
    counts = counting.count_signatures(tokens.ids, tokens.vocab_size, separator=tokens.separator)
    numbers = summary.report(tokens, counts)
    made = corpus_report.provenance(
        tokens, HOSTILE_TOKENS[0], f"count {HOSTILE_TOKENS[1]} {HOSTILE_TOKENS[4]} \udcff"
    )
    page = corpus_report.write_html(tokens, counts, numbers, made, name=HOSTILE_TOKENS[0])
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", [*HOSTILE_TOKENS, "\ud800", "\U000e0001", "\n\t\0", "\u2028"])
def test_what_is_shown_is_printable_and_json_reads_back(text):
    shown = printable(text, 40)
    assert shown.isprintable() and len(shown) <= 40
    found = printable_json({"a": [text], text: 1})
    assert all(line.isprintable() for line in found.split("\n"))
    assert json.loads(found) == {"a": [text], text: 1}


def test_cut_text_keeps_both_ends_and_whole_escapes():
    assert printable("abc\u202e中 d") == r"abc\u202e中 d"
    assert printable("a" * 9 + "z" * 9, 10) == "aaaaaa…zzz"
    assert printable("\u202e" * 9, 20) == r"\u202e\u202e…\u202e"
    assert printable("short", 5) == "short"


def test_the_page_holds_hostile_names_as_data_only(tmp_path):
    page = write_hostile_report(tmp_path).read_text(encoding="utf-8")
    body = page[page.index("<main>") + 6 : page.index("</main>")]
    assert all(line.isprintable() for line in body.split("\n"))
    tags = set(re.findall(r"<(\w+)", re.sub(r"<script type=.*?</script>", "", body, flags=re.S)))
    allowed = {"h1", "h2", "p", "i", "em", "sup", "sub", "table", "thead", "tbody", "tr", "th"}
    allowed |= {"td", "div", "bdi", "figure", "figcaption", "noscript", "img", "dl", "dt", "dd"}
    assert tags <= allowed and "hacked" in body
    numbers = re.search(r'id="numbers">(.*?)</script>', page, re.S)
    assert numbers
    told = {row["text"] for row in json.loads(numbers[1])["least_predictable"]}
    assert told <= {*HOSTILE_TOKENS, "a", "b"} and len(told) == 10
    specs = re.findall(r'class="sc-spec">(.*?)</script>', page, re.S)
    assert len(specs) == 4
    for spec in specs:
        vl_convert.vegalite_to_vega(json.loads(spec))


def test_numbers_of_the_page_are_those_of_plain_definitions(tmp_path):
    (tmp_path / "text.txt").write_text("a b a b a c . " * 50)
    tokens = prepare(tmp_path / "text.txt", tmp_path / "t", 20, words=True)
    counts = counting.count_signatures(tokens.ids, tokens.vocab_size, separator=tokens.separator)
    dense = counts.toarray()
    p = dense.sum(0) / dense.sum()
    alone = -(p[p > 0] * np.log2(p[p > 0])).sum()
    given = 0.0
    for row in dense:
        if row.sum():
            q = row[row > 0] / row.sum()
            given -= (row.sum() / dense.sum()) * (q * np.log2(q)).sum()
    numbers = summary.report(tokens, counts, least=10)
    made = corpus_report.provenance(tokens, "text.txt", "…")
    page = corpus_report.write_html(tokens, counts, numbers, made, name="text.txt")
    assert f"{alone:.2f} bits" in page and f"{given:.2f} bits" in page
    assert len(made["SHA-256 of the token ids"]) == 64
    single = counting.count_signatures(np.array([2, 3]), tokens.vocab_size)
    few = summary.report(tokens, single)
    page = corpus_report.write_html(tokens, single, few, made, name="text.txt")
    assert page.count("Too few") == 5  # a report without pictures is a report


def test_names_in_a_scatter_do_not_collide_and_keep_their_place_in_wider_panels():
    rng = np.random.default_rng(0)
    names = ["word" * int(k) for k in rng.integers(1, 4, 120)]
    share = rng.random((120, 2))
    names[:2] = ["word", "word"]
    share[:2] = [0.58, 0.5], [0.61, 0.5]  # back to back at first, then into each other
    left, room = _placed(names, share, {w: w for w in _WIDTHS})
    assert 0 < sum(r <= 200 for r in room) < sum(r <= 400 for r in room) < 120
    for width in (*_WIDTHS, 207, 333, 555):
        boxes = []
        for name, (x, y), side, least in zip(names, share * width, left, room, strict=True):
            if least <= width:
                length = 6.3 * len(name)
                start = x - 5 - length if side else x + 5
                assert start >= 0 and start + length <= width
                boxes.append((start, start + length, y))
        for k, (a, b, y) in enumerate(boxes):
            for c, d, z in boxes[:k]:
                assert b <= c or d <= a or abs(y - z) >= 13


def test_pictures_show_who_is_alike(tmp_path):
    """Two kinds of tokens, each followed by its own labels, lie apart."""
    (tmp_path / "text.txt").write_text("a x b x a y b y c u d u c v d v " * 40)
    tokens = prepare(tmp_path / "text.txt", tmp_path / "t", 20, words=True)
    counts = counting.count_signatures(tokens.ids, tokens.vocab_size, separator=tokens.separator)
    chosen = [tokens.id_of(name) for name in "abcd"]
    spec = corpus_report.map_chart(tokens, counts, chosen).to_dict()
    rows = (
        spec["layer"][0]["data"]["values"] if "data" in spec["layer"][0] else spec["data"]["values"]
    )
    at = {row["name"]: row["x"] for row in rows}
    assert (at["a"] > 0) == (at["b"] > 0) != (at["c"] > 0) == (at["d"] > 0)


def test_a_scatter_refuses_what_it_cannot_draw():
    import pandas as pd

    table = pd.DataFrame({"name": ["a"], "x": [0.0], "y": [1.0]})
    with pytest.raises(ValueError, match="positive x on a logarithmic axis"):
        figures.token_scatter(table, x_title="x", y_title="y", log_x=True)
    with pytest.raises(ValueError, match="finite"):
        figures.token_scatter(table.assign(x=np.nan), x_title="x", y_title="y")


TEXT = "the cat saw the dog. the dog saw the cat. one two three. \u202eevil\n" * 120


def test_the_command_writes_a_report(tmp_path):
    (tmp_path / "my text.txt").write_text(TEXT, encoding="utf-8")
    ask = ("count", "my text.txt", "--words", "--vocab-size", "50")
    done = command(tmp_path, *ask, "--output", "r/r.html", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["documents"] == 1 and "\u202e" not in done.stdout
    page = (tmp_path / "r/r.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n")
    assert [p.name for p in (tmp_path / "r").iterdir()] == ["r.html"]
    assert "count &#x27;my text.txt&#x27; --words --vocab-size 50 --output r/r.html" in page
    for more, message in (
        (("--order", "1", "--output", "x.html"), "leave --order at 0"),
        (("--output", "my text.txt"), "that is the corpus"),
        (("--output", "r"), "it is a folder"),
    ):
        done = command(tmp_path, *ask, *more)
        assert done.returncode != 0 and message in done.stderr and "Traceback" not in done.stderr


def test_dark_colours_are_those_of_the_book():
    from project import REPOSITORY

    script = (REPOSITORY / "book/_assets/charts.js").read_text(encoding="utf-8")
    from staircase_lib.figures import style

    colors = set(re.findall(r"#[0-9a-f]{6}", json.dumps(style.DARK)))
    assert colors == set(re.findall(r'"(#[0-9a-f]{6})"', script))


def test_sparse_rows_of_zeros_make_no_nan():
    counts = sparse.csr_array(np.array([[0, 0, 0], [2, 1, 0], [0, 3, 1]]))
    rows = corpus_report._directions(counts, "root", np.arange(3))
    assert np.isfinite(rows).all() and np.allclose(np.linalg.norm(rows, axis=1), [0, 1, 1])
