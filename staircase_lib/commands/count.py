"""``count``: the signatures of a text, and what its tokens are like."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..chapters import BookError, Exit, ParameterError
from ..notebooks import CANNOT_WRITE
from ..printable import printable, printable_json
from . import corpora, terminal


def declare(commands: terminal.Commands) -> None:
    """Declare the command."""
    count = terminal.add(
        commands,
        "count",
        "count the signatures of a text, and tell what its tokens are like",
        count_corpus,
        needs=("pandas", "tokenizers"),
        in_clone=False,
    )
    corpora.add_corpus(count)
    count.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where ids and counts are kept (default: NAME.counts)",
    )
    count.add_argument(
        "--order", type=int, choices=(0, 1), default=0, help="pairs, or triples (default: 0)"
    )
    count.add_argument(
        "--tokens", metavar="A,B,…", help="tokens to tell about (order 1: to count, default all)"
    )
    count.add_argument(
        "--window",
        type=terminal.at_most(1000),
        default=1,
        metavar="N",
        help="tokens away (default: 1)",
    )
    count.add_argument(
        "--direction", choices=("next", "previous", "both"), help="side of the window"
    )
    count.add_argument(
        "--workers",
        type=terminal.at_most(1024),
        default=os.cpu_count() or 1,
        metavar="N",
        help="threads that count (default: the number of cores)",
    )
    count.add_argument(
        "--memory",
        type=terminal.at_most(2**24),
        default=1024,
        metavar="MB",
        help="for counting (default: 1024)",
    )
    count.add_argument(
        "--form",
        choices=("probability", "centred", "root", "ppmi"),
        default="ppmi",
        help="signature by which neighbours are found (default: ppmi)",
    )
    count.add_argument(
        "--least",
        type=terminal.at_most(10**12, least=0),
        default=100,
        metavar="N",
        help="tokens with fewer occurrences are neither ranked nor neighbours, contexts with fewer "
        "not listed (default: 100)",
    )
    count.add_argument(
        "--output", type=Path, metavar="FILE", help="write the report as one HTML file (order 0)"
    )
    count.add_argument("--json", action="store_true", help="print the report as JSON")
    count.add_argument(
        "--estimate",
        action="store_true",
        help="say how long it will take and how much memory and disk, from an excerpt that is "
        "counted for a moment, and keep nothing",
    )


def count_corpus(root: Path, options: argparse.Namespace) -> None:
    """Count the signatures of a corpus and print what its tokens are like."""
    from ..language import counting, folders, summary
    from ..language.corpus import CorpusError

    name = Path(options.corpus).name.replace(":", "-") or "corpus"
    folder = options.folder or Path(f"{name}.counts")
    if options.estimate:
        print(_estimate_in_words(options, folder))
        return
    if options.output:
        terminal.require("count --output", terminal.NEEDS_OF_REPORTS)
        if options.order:
            raise ParameterError("--output: the report tells of pairs; leave --order at 0.")
        here = options.output.exists() and Path(options.corpus).exists()
        if here and options.output.samefile(options.corpus):
            raise ParameterError(f"--output {options.output}: that is the corpus; give another.")
        terminal.check_writable(options.output)
    tell = terminal.Counter(sys.stderr)
    try:
        tokens = corpora.tokens(options, folder, lambda done: tell(done, None, "tokens written"))
        asked = _token_ids(tokens, options.tokens.split(",")) if options.tokens else None
        wanted = {
            "order": options.order,
            "tokens": asked if options.order else None,
            "window": options.window,
            "direction": options.direction,
        }
        kind = "-".join(str(value) for value in wanted.values() if not isinstance(value, list))
        counts = counting.count_signatures(
            tokens.ids,
            tokens.vocab_size,
            **wanted,
            workers=options.workers,
            separator=tokens.separator,
            memory=options.memory * 2**20,
            folder=folder / f"counts-{kind}",
            progress=lambda done, n: tell(done, n, "tokens counted"),
        )
    except (CorpusError, ValueError) as error:
        raise ParameterError(str(error)) from None
    except folders.FolderInUse as error:
        raise BookError(str(error), Exit.IN_USE) from None
    except OSError as error:
        code = Exit.CANNOT_WRITE if error.errno in CANNOT_WRITE else Exit.FAILED
        raise BookError(str(error), code) from None
    if not counts.nnz:
        raise ParameterError(
            f"{options.corpus}: nothing to count: no token has another beside it in its document."
        )
    if options.order:
        found = summary.report_of_triples(tokens, counts, asked=asked, least=options.least)
    else:
        found = summary.report(tokens, counts, asked=asked, form=options.form, least=options.least)
    if options.output:
        from .. import corpus_report

        page = corpus_report.write_html(
            tokens,
            counts,
            found,
            corpus_report.provenance(tokens, options.corpus, options.typed),
            name=Path(options.corpus).name or options.corpus,
            form=options.form,
            window=options.window,
            direction=options.direction or "next",
        )
        terminal.write_report(options.output, page)
        print(f"The report: {options.output.resolve().as_uri()}", file=sys.stderr)
    told = (
        printable_json(found) if options.json else _in_words(found, options.window, options.order)
    )
    print(told)


def _estimate_in_words(options: argparse.Namespace, folder: Path) -> str:
    """What the count will take, and from what that is told."""
    from .. import estimates
    from ..language import count_estimate
    from ..language.corpus import CorpusError, sources
    from ..language.id_files import holds_ids

    missing: tuple[str, ...] = ()
    source = "an excerpt of it, counted on this machine"
    characters, encoding = None, 0.0
    try:
        with tempfile.TemporaryDirectory() as place:
            if corpora.are_there(options, folder):
                excerpt = corpora.tokens(options, folder, lambda done: None)
                tokens, before = float(excerpt.length), (0.0, 0.0)
                source = "the beginning of its ids, which are there, counted on this machine"
            elif holds_ids(options.corpus):
                given = (options.dtype, options.separator, options.tokenizer)
                excerpt, tokens, copied = count_estimate.estimate_ids(
                    options.corpus, Path(place), options.vocab_size, *given
                )
                before = (0.0, copied)
            else:
                text = count_estimate.look_at(options.corpus, options.field, options.limit)
                if text.characters is None:
                    raise ParameterError(
                        f"--estimate: how long {options.corpus} is cannot be told before it is "
                        f"read; give --limit."
                    )
                missing, characters = text.missing, text.characters
                encoding = text.memory(options.tokenizer is None)
                if not text.own:
                    source = "other text, counted on this machine: perhaps three times off"
                size = options.vocab_size or corpora.VOCAB_SIZE
                kind = {"words": options.words, "tokenizer": options.tokenizer}
                excerpt, tokens, *before = count_estimate.estimate_tokens(
                    text, size, Path(place), **kind
                )
                before = (before[0], before[1])
            found = count_estimate.estimate_counting(
                excerpt,
                tokens,
                order=options.order,
                asked=_known_ids(excerpt, options.tokens) if options.tokens else None,
                window=options.window,
                direction=options.direction,
                workers=options.workers,
                memory=options.memory * 2**20,
                form=options.form,
                least=options.least,
                before=before,
                encoding=encoding,
            )
    except (CorpusError, ValueError) as error:
        raise ParameterError(str(error)) from None
    lines = [f"{options.corpus}: about {estimates.duration(found.seconds)}, told from {source}"]
    parts = {
        "the tokenizer": found.train,
        "the ids": found.encode,
        "counting": found.count,
        "the report": found.report,
    }
    lines += [f"{estimates.duration(each):>18}  {what}" for what, each in parts.items() if each]
    if characters is not None:
        lines.append(f"{characters:>18,.0f}  characters")
    lines.append(f"{found.tokens:>18,.0f}  tokens")
    lines.append(f"{_size(found.memory):>18}  of memory")
    low, high = map(_size, found.disk)
    kept = low if low == high else f"{low} to {high}"
    lines.append(f"{kept:>18}  of disk in {printable(str(folder))}")
    lines.append(f"{_size(found.shards):>18}  of disk besides, until it is done")
    if missing:
        texts = [sources()[name] for name in missing]
        archives = {text.sha256: text.archive_bytes for text in texts}
        lines.append(f"{_size(sum(archives.values())):>18}  to fetch first: {', '.join(missing)}")
    return "\n".join(lines)


def _size(count: float) -> str:
    """Bytes as one says them."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{max(count / 1e6, 1):,.0f} MB"


def _known_ids(tokens: Any, texts: str) -> list[int]:
    """Ids of the tokens that an excerpt has of those that are asked for; one at least."""
    found = []
    for text in texts.split(","):
        with contextlib.suppress(ValueError):
            found += _token_ids(tokens, [text])
    return found or [tokens.vocab_size - 1]


def _token_ids(tokens: Any, texts: Sequence[str]) -> list[int]:
    """Ids of tokens that the user names, with a space before them or without."""
    tokenizer, found = tokens.tokenizer, []
    if tokenizer is None:
        try:
            return [int(text.removeprefix("#")) for text in texts]
        except ValueError:
            raise ValueError(
                f"--tokens: expected ids, as these tokens have no text, got {','.join(texts)}; "
                f"--tokenizer tells what they are."
            ) from None
    for text in texts:
        ids = [tokenizer.encode(form).ids for form in (f" {text}", text)]
        single = [i[0] for i in ids if len(i) == 1 and tokens.texts(i)[0].strip() == text]
        if not single:
            raise ValueError(
                f"--tokens: expected single tokens, but {text!r} is {tokens.texts(ids[1])}; a "
                f"larger --vocab-size or --words may have it."
            )
        found.append(single[0])
    return found


def _in_words(found: dict[str, Any], window: int = 1, order: int = 0) -> str:
    names = ("tokens", "documents", "vocab_size", "pairs", "triples", "distinct")
    simple = {name: found[name] for name in names if name in found}
    lines = [f"{name.replace('_', ' '):>18}  {value:,}" for name, value in simple.items()]
    for name in ("most_predictable", "least_predictable"):
        if rows := found.get(name):
            told = "bits of the next token, occurrences, token"
            if order:
                told = "bits of the next token, triples, token"
            elif window > 1:
                told = f"bits of a token within {window} of it, pairs, token"
            lines += ["", f"{name.replace('_', ' ')}: {told}"]
            lines += [
                f"  {row['bits']:7.3f}  {row['count']:>10,}  {printable(row['text'])}"
                for row in rows
            ]
    if "least" in found and len(found["most_predictable"]) < found["rows"]:
        lines += ["", f"tokens that occur {found['least']:,} times or more only; see --least"]
    if rows := found.get("neighbours"):
        lines += ["", "nearest by signature"]
        lines += [
            f"  {printable(row['text'])}: {', '.join(printable(text) for text in row['nearest'])}"
            for row in rows
        ]
    if rows := found.get("contexts"):
        lines += ["", "strongest contexts: bits that it tells on average, triples, context → label"]
    for row in rows or ():
        lines.append(f"  {printable(row['text'])}")
        lines += [
            f"    {each['share']:7.3f}  {each['count']:>10,}  {printable(each['text'])} → "
            f"{printable(each['label'])}"
            for each in row["contexts"]
        ]
    return "\n".join(lines)
