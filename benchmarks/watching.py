"""How much memory this process takes while it works (Linux), in two figures:

- anonymous memory, which is what it allocates;
- resident memory, with the pages of mapped files besides. These are the operating system's cache
  of the disk: it takes them back at any time, without writing, when anybody needs memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def resident() -> dict[str, int]:
    """Bytes of anonymous and of all resident memory at this moment."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    names = {"anonymous": "RssAnon", "resident": "VmRSS"}
    return {name: int(found[key].split()[0]) * 1024 for name, key in names.items()}


@contextmanager
def watched(every: float = 0.005) -> Iterator[dict[str, dict[str, int]]]:
    """Memory ``before`` the block and, when it has ended, at most meanwhile, ``peak``."""
    found = {"before": resident(), "peak": resident()}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(every):
            for name, size in resident().items():
                found["peak"][name] = max(found["peak"][name], size)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()
