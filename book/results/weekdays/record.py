"""Count the neighbours of the weekdays in texts that not every machine can fetch; keep the counts.

    python book/results/weekdays/record.py novels=austen manual=help-en

Each argument is a name and a named corpus. The texts do not stay: chapter 7c reads
``<name>.parquet`` and ``provenance.json``.
"""

import hashlib
import importlib.metadata
import json
import subprocess
import sys
import time
from pathlib import Path

from staircase_lib.language import resampling, tokens
from staircase_lib.language.corpus import sources

WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
WINDOWS = {
    "next": ("next", 1),
    "previous": ("previous", 1),
    **{f"±{k}": ("both", k) for k in (1, 4, 10, 20)},
}
VOCAB_SIZE, BLOCKS = 16384, 40

here = Path(__file__).parent
kept = here / "provenance.json"
provenance = json.loads(kept.read_text()) if kept.exists() else {}
commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
for argument in sys.argv[1:]:
    name, _, corpus = argument.partition("=")
    started = time.monotonic()
    text = tokens.prepared(corpus, VOCAB_SIZE, words=True)
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
        "corpus": corpus,
        "source": f"{sources()[corpus].title}, {sources()[corpus].package}",
        "licence": sources()[corpus].licence,
        "corpus_sha256": sources()[corpus].sha256,
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
