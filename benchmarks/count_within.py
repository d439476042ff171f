"""Count a token file in a process of its own and say how much memory that took.

``python count_within.py IDS VOCAB_SIZE SEPARATOR MEMORY WORKERS FOLDER`` counts the uint16 ids in a
file within so many bytes, keeps the result in a folder and prints JSON: seconds, entries, and in
bytes what the process had before (Python, NumPy, SciPy) and at most meanwhile, in two figures:

- anonymous memory, which is what counting allocates and what ``memory`` limits;
- resident memory, with the pages of the mapped file besides. These are the operating system's
  cache of the disk: it takes them back at any time, without writing, when anybody needs memory.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np

from staircase_lib.language.counting import count_signatures


def resident() -> dict[str, int]:
    """Bytes of anonymous and of all resident memory (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    names = {"anonymous": "RssAnon", "resident": "VmRSS"}
    return {name: int(found[key].split()[0]) * 1024 for name, key in names.items()}


def main(path: str, vocab_size: str, separator: str, memory: str, workers: str, out: str) -> None:
    ids = np.memmap(path, np.uint16, "r")
    before = peak = resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = {name: max(peak[name], size) for name, size in resident().items()}

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    counts = count_signatures(
        ids,
        int(vocab_size),
        workers=int(workers),
        separator=int(separator),
        memory=int(memory),
        folder=out,
    )
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    result = {"seconds": seconds, "entries": int(counts.nnz), "before": before, "peak": peak}
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
