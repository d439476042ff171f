"""Ids that other programs wrote: the same ids, whatever the file, or a clear refusal."""

import json
import struct

import numpy as np
import pytest

from staircase_lib.language import id_files, tokens, vocabulary
from staircase_lib.language.corpus import CorpusError
from staircase_lib.language.id_files import import_ids

IDS = np.array([5, 6, 7, 0, 300, 8, 0, 9, 9, 9])  # three documents, the last one open


def llm_c(ids, magic=20240520, length=None):
    header = np.zeros(256, "<i4")
    header[:3] = magic, 1, len(ids) if length is None else length
    return header.tobytes() + ids.astype("<u2" if magic == 20240520 else "<u4").tobytes()


def megatron(ids, ends, code=8, dtype="<u2"):
    """Index and ids: one sequence a document."""
    lengths = np.diff([0, *ends]).astype("<i4")
    pointers = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype("<i8")
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
    documents = np.arange(len(lengths) + 1, dtype="<i8")
    index += lengths.tobytes() + pointers.tobytes() + documents.tobytes()
    return index, ids.astype(dtype).tobytes()


def write(folder, kind):
    """A file of the given kind; returns what to import, and the options that it needs."""
    path = folder / "ids.bin"
    if kind.startswith("npy"):
        path = folder / "ids.npy"
        np.save(path, IDS.astype(kind[4:]))
    elif kind == "raw":
        path.write_bytes(IDS.astype("<u2").tobytes())
        return path, {"dtype": "uint16"}
    elif kind.startswith("llm.c"):
        path.write_bytes(llm_c(IDS, int(kind[6:])))
    else:
        closed = np.append(IDS, 0)
        index, content = megatron(closed, [4, 7, 11])
        path.write_bytes(content)
        path.with_suffix(".idx").write_bytes(index)
    return path, {}


@pytest.mark.parametrize(
    "kind",
    [
        *("npy uint16", "npy int32", "npy uint32", "npy int64", "npy >u2", "npy uint8"),
        *("raw", "llm.c 20240520", "llm.c 20240801", "megatron"),
    ],
)
def test_every_kind_of_file_holds_the_same_ids(tmp_path, kind):
    wanted = np.minimum(IDS, 255) if kind == "npy uint8" else IDS
    if kind == "npy uint8":
        np.save(tmp_path / "ids.npy", wanted.astype("uint8"))
        path, options = tmp_path / "ids.npy", {}
    else:
        path, options = write(tmp_path, kind)
    found = import_ids(path, tmp_path / "out", 400, separator=0, **options)
    np.testing.assert_array_equal(found.ids[: len(wanted)], wanted)
    assert found.length == len(wanted) + (kind == "megatron") and found.documents == 3
    assert found.dtype in ("uint16", "uint32") and found.texts([17]) == ["#17"]
    assert found.tokenizer is None and found.id_of("x") is None
    # Two and four bytes are read in place, others copied; a copy does not need its source.
    copied = kind in ("npy int64", "npy >u2", "npy uint8")
    assert (tmp_path / "out/ids.bin").exists() == copied == (found.file is None)
    assert tokens.open_tokens(tmp_path / "out") == found
    assert import_ids(path, tmp_path / "out", 400, separator=0, **options) == found
    if copied:
        path.unlink()
        np.testing.assert_array_equal(tokens.open_tokens(tmp_path / "out").ids, wanted)


def test_shards_follow_the_numbers_in_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr(id_files, "_CHUNK", 3)
    parts = np.split(np.arange(1, 31), [4, 11, 12])
    for name, part in zip(
        ("ids_1.npy", "ids_2.bin", "ids_10.npy", "ids_011.npy"), parts, strict=True
    ):
        if name.endswith("npy"):
            np.save(tmp_path / name, part)
        else:
            part.astype("<u2").tofile(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not ids")
    seen = []
    found = import_ids(
        tmp_path, tmp_path / "o", 31, dtype="uint16", separator=0, progress=seen.append
    )
    np.testing.assert_array_equal(found.ids, np.arange(1, 31))
    assert seen[-1] == 30 and seen == sorted(seen) and found.documents == 1


def test_a_tokenizer_gives_size_separator_and_texts(tmp_path):
    (tmp_path / "text.txt").write_text("one two three " * 20)
    tokenizer = vocabulary.train_tokenizer(tmp_path / "text.txt", 300)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode("one two three").ids
    np.save(tmp_path / "ids.npy", np.array([*ids, 0], "uint16"))
    found = import_ids(tmp_path / "ids.npy", tmp_path / "out", tokenizer=tmp_path)
    assert (found.vocab_size, found.separator) == (tokenizer.get_vocab_size(), 0)
    assert "".join(found.texts(ids)) == "one two three"


@pytest.mark.parametrize("beyond", [400, 65535, -1])
@pytest.mark.parametrize("copy", [False, True])
def test_an_id_outside_the_vocabulary_is_named_with_its_place(tmp_path, monkeypatch, beyond, copy):
    monkeypatch.setattr(id_files, "_CHUNK", 4)
    ids = np.tile(IDS, 3)
    ids[[17, 25]] = beyond
    np.save(tmp_path / "ids.npy", ids.astype("int64" if copy else "int32"))
    with pytest.raises(CorpusError, match=rf"ids\.npy: id {beyond} at position 17 is outside"):
        import_ids(tmp_path / "ids.npy", tmp_path / "out", 400, separator=0)
    with pytest.raises(CorpusError, match=r"header\.json"):  # what was copied is not taken for all
        tokens.open_tokens(tmp_path / "out")


def test_files_that_do_not_hold_what_they_promise(tmp_path):
    def refused(name, content, message, **options):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CorpusError, match=message):
            import_ids(tmp_path / name, tmp_path / "out", 400, separator=0, **options)

    np.save(tmp_path / "whole.npy", IDS)
    whole = (tmp_path / "whole.npy").read_bytes()
    refused("cut.npy", whole[:-5], r"cut\.npy: not an array of NumPy, or cut")
    refused("head.npy", whole[:9], "not an array of NumPy, or cut")
    refused("text.npy", b"some text", "not an array of NumPy, or cut")
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object))
    refused("o.npy", (tmp_path / "object.npy").read_bytes(), "not an array of NumPy, or cut")
    for wrong in (IDS.astype(float), IDS.reshape(2, 5), np.array(3)):
        np.save(tmp_path / "wrong.npy", wrong)
        refused("w.npy", (tmp_path / "wrong.npy").read_bytes(), "expected one axis of integers")
    refused("odd.bin", b"\1\0\2", "expected whole ids, of 2 bytes", dtype="uint16")
    refused("empty.bin", b"", "no ids in it", dtype="uint16")
    refused("short.bin", llm_c(IDS)[:-2], "expected 10 ids, as its header says")
    refused("long.bin", llm_c(IDS, length=9), "expected 9 ids, as its header says")
    closed = np.append(IDS, 0)
    index, content = megatron(closed, [4, 7, 11])
    (tmp_path / "m.idx").write_bytes(index)
    refused("m.bin", content[:-2], "expected 11 ids, as its header says")
    for broken in (b"", b"nonsense" * 9, index[:40], index[:9] + b"\2" + index[10:]):
        (tmp_path / "m.idx").write_bytes(broken)
        refused("m.bin", content, r"m\.idx: not an index of Megatron-LM, or cut")
    # Documents without a separator: pairs would cross their ends.
    (tmp_path / "m.idx").write_bytes(megatron(closed, [4, 6, 11])[0])
    refused("m.bin", content, "document 1 does not end with the separator")


def test_what_no_file_says_has_to_be_given(tmp_path):
    IDS.astype("<u2").tofile(tmp_path / "ids.bin")
    for options, message in (
        ({"vocab_size": None, "separator": 0}, "vocab_size: expected with ids of another program"),
        ({"vocab_size": 400}, "separator: expected with ids of another program"),
        ({"vocab_size": 400, "separator": 400}, r"separator: expected an id in \[0, 400\)"),
        ({"vocab_size": 400, "separator": 0}, r"dtype: expected with ids\.bin"),
        ({"vocab_size": 400, "separator": 0, "dtype": "float32"}, "dtype: expected a type of int"),
        ({"vocab_size": 400, "separator": 0, "dtype": "nonsense"}, "dtype: expected a type of int"),
    ):
        with pytest.raises(ValueError, match=message):
            import_ids(tmp_path / "ids.bin", tmp_path / "out", **options)
    with pytest.raises(CorpusError, match="expected files of ids that end in"):
        import_ids(tmp_path / "missing", tmp_path / "out", 400, separator=0)
    # Wrong variant: the ids read as of another width are others, and found out.
    with pytest.raises(CorpusError, match="or the type not uint32"):
        import_ids(tmp_path / "ids.bin", tmp_path / "out", 400, separator=0, dtype="uint32")


def test_ids_that_have_changed_since_are_not_taken_for_what_they_were(tmp_path):
    path = tmp_path / "ids.npy"
    np.save(path, IDS.astype("uint16"))
    import_ids(path, tmp_path / "out", 400, separator=0)
    for settings in ({"vocab_size": 500, "separator": 0}, {"vocab_size": 400, "separator": 5}):
        with pytest.raises(CorpusError, match="give another folder, or delete it"):
            import_ids(path, tmp_path / "out", **settings)
    np.save(path, IDS[:-1].astype("uint16"))
    with pytest.raises(CorpusError, match="give another folder, or delete it"):
        import_ids(path, tmp_path / "out", 400, separator=0)
    with pytest.raises(CorpusError, match="the file was cut or replaced. Import the ids again"):
        tokens.open_tokens(tmp_path / "out")
    np.save(path, IDS[::-1].astype("uint16"))  # as long as before
    with pytest.raises(CorpusError, match="has changed since its ids were looked at"):
        tokens.open_tokens(tmp_path / "out")
    header = json.loads((tmp_path / "out/header.json").read_text())
    assert header["file"] == str(path) and header["offset"] > 0
    header["offset"] = "0"
    (tmp_path / "out/header.json").write_text(json.dumps(header))
    with pytest.raises(CorpusError, match="not the header of token ids"):
        tokens.open_tokens(tmp_path / "out")
