"""Count the neighbours of the weekdays in texts that not every machine can fetch; keep the counts.

    apt-get download r-cran-janeaustenr=1.0.0-1 && dpkg-deb -x r-cran-janeaustenr*.deb austen
    python book/results/weekdays/record.py manual=help-en \\
        novels=austen/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb

Each argument is a name and a corpus: a named one, a text file, or R's store of character vectors.
The texts do not stay: chapter 7c reads ``<name>.parquet`` and ``provenance.json``.
"""

import hashlib
import importlib.metadata
import json
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

from staircase_lib.language import resampling, tokens
from staircase_lib.language.corpus import sources

WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
WINDOWS = {
    "next": ("next", 1),
    "previous": ("previous", 1),
    **{f"±{k}": ("both", k) for k in (1, 4, 10, 20)},
}
SOURCES = {
    "manual": "help of LibreOffice, Debian libreoffice-help-en-us 4:7.4.7-1+deb12u14, MPL-2.0",
    "novels": "six novels by Jane Austen, Debian r-cran-janeaustenr 1.0.0-1, public domain",
}
VOCAB_SIZE, BLOCKS = 16384, 40


def lines_of(store: bytes) -> list[str]:
    """Strings of the vectors in an R lazy-load file: compressed chunks, each after its length."""
    content = b""
    while store:
        chunk = zlib.decompressobj()
        content += chunk.decompress(store[4:])
        store = chunk.unused_data
    found, at = [], 0
    while True:  # a string: its type and flags, its length, its bytes
        marks = [content.find(mark, at) for mark in (b"\0\x04\0\x09", b"\0\0\x80\x09")]
        if max(marks) < 0:
            return found
        at = min(mark for mark in marks if mark >= 0) + 8
        (length,) = struct.unpack(">i", content[at - 4 : at])
        if 0 <= length < 2000:
            found.append(content[at : at + length].decode("utf-8"))
            at += length


here = Path(__file__).parent
kept = here / "provenance.json"
provenance = json.loads(kept.read_text()) if kept.exists() else {}
commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
for argument in sys.argv[1:]:
    name, _, corpus = argument.partition("=")
    started = time.monotonic()
    source = corpus
    if corpus.endswith(".rdb"):
        with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as text_file:
            text_file.write("\n".join(lines_of(Path(corpus).read_bytes())))
        source = text_file.name
    text = tokens.prepared(source, VOCAB_SIZE, words=True)
    asked = [text.id_of(day) for day in WEEKDAYS]
    counts = {
        window: resampling.count_blocks(
            text.ids, text.vocab_size, asked, BLOCKS,
            window=reach, direction=direction, separator=text.separator,
        )
        for window, (direction, reach) in WINDOWS.items()
    }  # fmt: skip
    file = here / f"{name}.parquet"
    resampling.as_table(counts).to_parquet(file, compression="zstd", index=False)
    provenance[name] = {
        "source": SOURCES.get(name, ""),
        "corpus": Path(corpus).name,
        "corpus_sha256": hashlib.sha256(Path(corpus).read_bytes()).hexdigest()
        if Path(corpus).is_file()
        else sources()[corpus].sha256,
        "tokens": text.length,
        "vocab_size": text.vocab_size,
        "blocks": BLOCKS,
        "weekdays": dict(zip(WEEKDAYS, map(int, asked), strict=True)),
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "commit": commit.stdout.strip(),
        "versions": {p: importlib.metadata.version(p) for p in ("numpy", "scipy", "tokenizers")},
        "seconds": round(time.monotonic() - started, 1),
    }
kept.write_text(json.dumps(provenance, indent=1, ensure_ascii=False) + "\n")
