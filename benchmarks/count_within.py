"""Count a token file in a process of its own and say how much memory that took.

``python count_within.py IDS VOCAB_SIZE SEPARATOR MEMORY WORKERS FOLDER`` counts the uint16 ids in a
file within so many bytes, keeps the result in a folder and prints JSON: seconds, entries, and the
bytes that the process had before and at most meanwhile, as ``watching`` tells them apart; of these
``memory`` limits the anonymous part.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from watching import watched

from staircase_lib.language.counting import count_signatures


def main(path: str, vocab_size: str, separator: str, memory: str, workers: str, out: str) -> None:
    ids = np.memmap(path, np.uint16, "r")
    start = time.perf_counter()
    with watched() as memory_of:
        counts = count_signatures(
            ids,
            int(vocab_size),
            workers=int(workers),
            separator=int(separator),
            memory=int(memory),
            folder=out,
        )
    result = {"seconds": time.perf_counter() - start, "entries": int(counts.nnz), **memory_of}
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
