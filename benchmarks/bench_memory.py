"""2 GB of token ids counted within 1 GB of memory, by one thread and by two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import row

from staircase_lib.language.counting import count_signatures
from staircase_lib.language.tokens import prepared

V = 16384
BYTES = 2 * 10**9
MEMORY = 10**9


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read as on Linux")
@pytest.mark.parametrize("workers", [1, 2])
def test_two_gigabytes_within_one(
    recorded: list[dict[str, Any]], tmp_path: Path, workers: int
) -> None:
    """The corpus written over and over, cut where the file is full.

    Every copy ends in a separator, so that the counts have to be those of one copy, times the
    number of copies, and those of the piece at the end.
    """
    tokens = prepared("default", V)
    copy = np.array(tokens.ids)
    copies, rest = divmod(BYTES // 2, len(copy))
    path = tmp_path / "ids.bin"
    try:
        with path.open("wb") as file:
            for _ in range(copies):
                copy.tofile(file)
            copy[:rest].tofile(file)
        asked = [path, V, tokens.separator, MEMORY, workers, tmp_path / "counts"]
        done = subprocess.run(
            [sys.executable, Path(__file__).parent / "count_within.py", *map(str, asked)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    finally:
        path.unlink(missing_ok=True)
    found = json.loads(done.stdout)
    taken = {name: found["peak"][name] - found["before"][name] for name in found["peak"]}

    # Sum over parts; the counts are read from the folder, where one id file cannot be any more
    once = count_signatures(copy, V, separator=tokens.separator)
    expected = once * copies + count_signatures(copy[:rest], V, separator=tokens.separator)
    keys = np.fromfile(tmp_path / "counts" / "keys.part", np.uint32)
    counts = np.fromfile(tmp_path / "counts" / "counts.part", np.int64)
    rows = np.repeat(np.arange(V), np.diff(expected.indptr))
    assert np.array_equal(keys, rows * V + expected.indices)
    assert np.array_equal(counts, expected.data)
    assert taken["anonymous"] <= MEMORY

    recorded.append(
        row(
            "memory",
            f"{BYTES / 1e9:.0f} GB of ids counted within {MEMORY / 1e9:.0f} GB",
            [found["seconds"]],
            work=BYTES / 2 / 1e6,
            unit="million tokens a second",
            threads=workers,
            n=BYTES // 2,
            vocab_size=V,
            peak_memory_mb=round(taken["anonymous"] / 1e6),
            note="memory besides the interpreter's; the operating system also kept "
            f"{round((taken['resident'] - taken['anonymous']) / 1e6)} MB of the file in its cache",
        )
    )
