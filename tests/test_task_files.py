"""Tasks read from tables: what is meant, and files as people really have them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from staircase_lib.task_files import TaskFileError, read_task


@pytest.fixture
def write(tmp_path):
    def file(text: str | bytes, name: str = "task.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return file


def rows_of(named):
    """Rows as a reader wrote them, with normalised weights."""
    task, names = named.task, named.names
    return [
        (tuple(names[t] for t in row), names[y], round(float(w), 6))
        for row, y, w in zip(task.tokens, task.labels, task.weights, strict=True)
    ]


def test_words_labels_and_weights_come_back_as_written(write):
    named = read_task(write("x1,x2,label,weight\nred,big,yes,3\nblue,big,no,1\n"))
    assert rows_of(named) == [(("red", "big"), "yes", 0.75), (("blue", "big"), "no", 0.25)]
    assert named.names == ("red", "big", "blue", "yes", "no")
    assert named.task.name == "task" and named.remarks == ()


def test_a_label_written_like_a_token_is_that_token_and_numbers_are_in_order(write):
    named = read_task(write("x1,x2,label\n10,2,2\n2,9,11\n"))
    assert named.names == ("2", "9", "10", "11")
    assert named.task.vocab_size == 4 and rows_of(named)[0][1] == "2"


@pytest.mark.parametrize("text", [
    "sequence,label\na b,1\nc d,2\n",
    "Label,X2,X1\n1,b,a\n2,d,c\n",
    "x1;x2;label\na;b;1\nc;d;2\n",
    "\ufeffx1,x2,label\r\na,b,1\r\n\r\nc,d,2.0\r\n",
    "a,b,1\nc,d,2\n",
])  # fmt: skip
def test_spellings_of_one_table(write, text):
    named = read_task(write(text))
    assert [row[:2] for row in rows_of(named)] == [(("a", "b"), "1"), (("c", "d"), "2")]
    assert bool(named.remarks) == text.startswith("a,b")  # no header: said so


def test_parquet_is_the_same_as_csv(write, tmp_path):
    table = pd.DataFrame({"x1": [1, 2], "x2": [2, 2], "label": ["p", "q"], "weight": [1.5, 0.5]})
    table.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv", index=False)
    assert rows_of(read_task(tmp_path / "t.parquet")) == rows_of(read_task(tmp_path / "t.csv"))
    lists = pd.DataFrame({"sequence": [["a", "b"], ["b", "b"]], "label": [True, False]})
    lists.to_parquet(tmp_path / "l.parquet")
    assert rows_of(read_task(tmp_path / "l.parquet"))[0] == (("a", "b"), "True", 0.5)


def test_positions_tell_equal_words_apart_if_asked(write):
    path = write("x1,x2,label\na,a,0\na,b,1\n")
    assert len(np.unique(read_task(path).task.tokens)) == 2
    apart = read_task(path, by_position=True)
    assert apart.names[:3] == ("a@1", "a@2", "b@2")


def test_anchors_are_the_most_frequent_or_the_asked(write):
    path = write("x1,x2,label,weight\na,b,0,1\na,c,1,1\nd,b,0,5\n")
    few = read_task(path, most_anchors=2)
    assert [few.names[a] for a in few.task.anchors] == [
        "b",
        "d",
    ] and "most frequent" in few.remarks[0]
    asked = read_task(path, anchors=["c", "a"])
    assert [asked.names[a] for a in asked.task.anchors] == ["c", "a"]
    with pytest.raises(TaskFileError, match="'z' is no token"):
        read_task(path, anchors=["z"])
    with pytest.raises(TaskFileError, match="'0' is no token"):  # a label only
        read_task(path, anchors=["0"])


def test_text_is_text_whatever_it_says(write):
    named = read_task(write('x1,x2,label\n<script>alert(1)</script>,"a,""b""",=cmd()\n'))
    assert named.names[0] == "<script>alert(1)</script>" and named.names[1] == 'a,"b"'


def test_long_numbers_are_not_rounded_into_each_other(write):
    close = read_task(write("x1,label\n9007199254740993.0,1\n9007199254740992.0,2\n"))
    assert close.names[:2] == ("9007199254740992", "9007199254740993")
    huge = "1" * 5000
    assert read_task(write(f"x1,label\n{huge}.0,1\n{huge},1\n-0.0,1\n")).names[:2] == (huge, "0")
    assert "none" in read_task(write("x1,label\na,none\nb,some\n")).names


BAD = {
    "empty": ("", "the file is empty"),
    "blank": ("\n \n", "the file is empty"),
    "only a header": ("x1,label\n", "at least one sequence"),
    "no label": ("x1,x2\n1,2\n", "expected columns x1.*got the columns"),
    "no tokens": ("label,weight\n1,2\n", "got the columns"),
    "both forms": ("x1,sequence,label\n1,2,3\n", "got the columns"),
    "a gap": ("x1,x3,label\n1,2,3\n", "without a gap"),
    "strange column": ("x1,label,note\n1,2,3\n", "'note' is none of"),
    "twice": ("x1,x1,label\n1,2,3\n", "'x1' stands there twice"),
    "ragged row": ("x1,x2,label\n1,2,3\n1,2\n", "line 3: expected 3 cells, got 2"),
    "ragged sequence": ("sequence,label\na b,1\na b c,1\n", "line 3: expected 2 tokens.*got 3"),
    "empty sequence": ("sequence,label\n ,1\n", "line 2: expected at least 1 token"),
    "missing token": ("x1,x2,label\n1,,3\n", "line 2: expected a token, got ''"),
    "NaN label": ("x1,label\n1,NaN\n", "line 2: expected a label, got 'NaN'"),
    "negative weight": ("x1,label,weight\n1,2,-1\n", "line 2: expected a weight.*'-1'"),
    "infinite weight": ("x1,label,weight\n1,2,inf\n", "line 2: expected a weight.*'inf'"),
    "weight in words": ("x1,label,weight\n1,2,many\n", "line 2: expected a weight.*'many'"),
    "weights of zero": ("x1,label,weight\n1,2,0\n", "only zeros"),
    "one column, no header": ("hello\nworld\n", "got one column"),
    "only commas": (",,,\n,,,\n", "the file is empty"),
    "only a mark": ("\ufeff".encode(), "the file is empty"),
    "character zero": ("x1,label\n\0,a\n", "line 2: expected a token, got the character zero"),
    "weight that vanishes": ("x1,label,weight\n1,2,5e-324\n2,2,1\n", "5e-324 vanishes beside 1.0"),
    "open quote": ('x1,label\n"1,2\n', "no CSV"),
    "no UTF-8": (
        "x1,label\n1,\xe9\n".encode("latin-1"),
        "line 2: expected UTF-8, got the byte 0xe9",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_named_with_its_place(write, name):
    text, message = BAD[name]
    path = write(text)
    with pytest.raises(TaskFileError, match=message) as caught:
        read_task(path)
    assert str(path) in str(caught.value)


def test_files_that_are_none(write, tmp_path):
    with pytest.raises(TaskFileError, match="cannot be read: No such file"):
        read_task(tmp_path / "absent.csv")
    with pytest.raises(TaskFileError, match="no such file"):
        read_task(tmp_path / "absent.parquet")
    with pytest.raises(TaskFileError, match="ends in .csv, .tsv or .parquet, got '.xlsx'"):
        read_task(write("x1,label\n1,2\n", "task.xlsx"))
    with pytest.raises(TaskFileError, match="cannot be read: Is a directory"):
        (tmp_path / "folder.csv").mkdir()
        read_task(tmp_path / "folder.csv")
    with pytest.raises(TaskFileError, match="no Parquet file"):
        read_task(write("x1,label\n1,2\n", "t.parquet"))
    pd.DataFrame({"x1": [1.0, None], "label": [1, 2]}).to_parquet(tmp_path / "null.parquet")
    with pytest.raises(TaskFileError, match="row 2: expected a token, got"):
        read_task(tmp_path / "null.parquet")


def test_one_row_is_a_task_and_many_rows_are_read(write):
    assert read_task(write("x1,label\na,a\n")).task.vocab_size == 1
    rng = np.random.default_rng(0)
    lines = "\n".join(",".join(map(str, row)) for row in rng.integers(0, 30, (100_000, 4)))
    many = read_task(write("x1,x2,x3,label\n" + lines))
    assert many.task.tokens.shape == (100_000, 3) and many.task.vocab_size == 30
