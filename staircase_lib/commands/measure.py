"""``measure``: a task of the user's, or a published series of checkpoints."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

from ..chapters import BookError, Exit, ParameterError
from ..printable import printable_json
from . import terminal

NEEDS_OF_SERIES = ("tokenizers", "safetensors", "huggingface_hub")
OF_TASK = (
    "seeds",
    "steps",
    "lr",
    "gamma",
    "d",
    "orders",
    "anchors",
    "most_anchors",
    "by_position",
    "estimate",
)
OF_SERIES = (
    *("revisions", "corpus", "limit", "tokenizer", "tokens", "attention", "windows", "length"),
    "tensor",
)


def declare(commands: terminal.Commands) -> None:
    """Declare the command."""
    measure = terminal.add(
        commands,
        "measure",
        "measure a task of your own: signatures, predicted stairs, training; or, with --model, a "
        "published series of checkpoints: embeddings against the signatures of a text",
        measure_task,
        needs=("torch", "pandas", *terminal.NEEDS_OF_REPORTS),
        in_clone=False,
    )
    measure.add_argument(
        "--output", type=Path, metavar="FILE", help="report (default: TASK.html, NAME.html)"
    )
    measure.add_argument("--json", action="store_true", help="print the numbers as JSON as well")
    measure.add_argument(
        "--estimate",
        action="store_true",
        help="of a task: say how long it will take, from short runs, and write nothing",
    )
    task = measure.add_argument_group("a task")
    task.add_argument(
        "task",
        type=Path,
        nargs="?",
        metavar="TASK",
        help="CSV or Parquet: columns x1, x2, … (or one column sequence), label, optional weight",
    )
    task.add_argument(
        "--seeds", type=terminal.at_most(10_000), metavar="N", help="seeds (default: 10)"
    )
    task.add_argument("--steps", type=int, metavar="N", help="steps of AdamW (default: 1500)")
    task.add_argument("--lr", type=float, help="learning rate of AdamW (default: 0.002)")
    task.add_argument(
        "--gamma", type=float, help="initialization rate; larger is smaller (default: 1.3)"
    )
    task.add_argument("--d", type=int, help="width of the model (default: 128)")
    task.add_argument(
        "--orders", type=int, metavar="M", help="highest signature order (default: as time allows)"
    )
    task.add_argument("--anchors", metavar="A,B,…", help="tokens to follow (default: all)")
    task.add_argument(
        "--most-anchors",
        type=int,
        metavar="N",
        help="without --anchors, follow the N most frequent tokens (default: 40)",
    )
    task.add_argument(
        "--by-position",
        action="store_true",
        help="the same word at another position is another token (the model sees no positions)",
    )
    series = measure.add_argument_group("a series of checkpoints")
    series.add_argument(
        "--model",
        metavar="NAME",
        help="ORG/NAME on the Hugging Face hub, such as EleutherAI/pythia-70m, or a folder with a "
        "folder a revision",
    )
    series.add_argument(
        "--revisions", nargs="+", metavar="R", help="such as step0 step512 step143000"
    )
    series.add_argument(
        "--corpus",
        metavar="CORPUS",
        help="text, or a folder of token ids, as `count` takes it (default: english); best that "
        "of the training",
    )
    series.add_argument(
        "--limit", type=int, metavar="N", help="characters of each text at most (default: all)"
    )
    series.add_argument(
        "--tokenizer", metavar="PATH", help="tokenizer.json (default: that of the series)"
    )
    series.add_argument("--tokens", type=int, metavar="N", help="most frequent (default: 300)")
    series.add_argument(
        "--attention", action="store_true", help="run the models too, for what attention writes"
    )
    series.add_argument(
        "--windows", type=int, metavar="N", help="windows that they read (default: 300)"
    )
    series.add_argument("--length", type=int, metavar="L", help="tokens of a window (default: 64)")
    series.add_argument(
        "--tensor", metavar="NAME", help="the embeddings' name, where it cannot be told"
    )


def measure_task(root: Path, options: argparse.Namespace) -> None:
    """Measure a task out of a file, or a series of checkpoints, and write the report."""
    if (options.task is None) == (options.model is None):
        raise ParameterError("measure: expected either TASK, a file, or --model with --revisions.")
    foreign = OF_SERIES if options.model is None else OF_TASK
    given = [name for name in foreign if getattr(options, name) not in (None, False)]
    if given:
        kind = "a task" if options.model is None else "a series of checkpoints"
        flag = given[0].replace("_", "-")
        raise ParameterError(f"--{flag}: not for {kind}; see measure --help.")
    if options.model is not None:
        measure_series(options)
        return

    from ..task_files import TaskFileError, read_task

    seeds = 10 if options.seeds is None else options.seeds
    try:
        named = read_task(
            options.task,
            anchors=options.anchors.split(",") if options.anchors else None,
            most_anchors=40 if options.most_anchors is None else options.most_anchors,
            by_position=options.by_position,
        )
    except TaskFileError as error:
        raise ParameterError(str(error)) from None
    report = options.output or options.task.with_suffix(".html")
    if report.exists() and report.samefile(options.task):
        raise ParameterError(f"--output {report}: that is the task itself; give another file.")
    if not options.estimate:
        terminal.check_writable(report)
    if options.gamma is not None and not 0 <= options.gamma <= 10:
        raise ParameterError(f"--gamma: expected a rate from 0 to 10, got {options.gamma}.")

    from .. import estimates, measurement, prediction

    given = {name: getattr(options, name) for name in ("d", "gamma", "steps", "lr", "orders")}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        settings = prediction.Settings(seeds=tuple(range(seeds)), **given)
        measurement.most_rows(named.task, settings)
    except ValueError as error:
        raise ParameterError(f"--{error}") from None
    print(f"{options.task}: {named.task}", *named.remarks, sep="\n", file=sys.stderr)

    def tell(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    try:
        if options.estimate:
            seconds = estimates.duration(measurement.estimate(named.task, settings))
            print(f"{options.task}: about {seconds}, told from short runs of it")
            return
        measured = measurement.measure(named.task, settings, named.names, progress=tell)
    except FloatingPointError as error:
        raise BookError(str(error)) from None
    for note in measured.notes:
        print(note, file=sys.stderr)

    from ..report import numbers_json, write_html

    terminal.write_report(report, write_html(measured))
    if options.json:
        print(numbers_json(measured))
    else:
        print(f"The report: {report.resolve().as_uri()}")


def measure_series(options: argparse.Namespace) -> None:
    """Measure a published series of checkpoints and write the report."""
    needed = [*NEEDS_OF_SERIES, *(["transformers"] if options.attention else [])]
    terminal.require("measure --model", needed, extra="series")
    if not options.revisions:
        raise ParameterError("--revisions: expected names such as step0 step512.")
    sizes = {name: getattr(options, name) for name in ("windows", "length")}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    if sizes and not options.attention:
        raise ParameterError(f"--{next(iter(sizes))}: only with --attention.")
    for name, value in (("tokens", options.tokens), ("limit", options.limit), *sizes.items()):
        least = {"tokens": 20, "limit": 1, "windows": 3, "length": 2}[name]
        if value is not None and value < least:
            raise ParameterError(f"--{name}: expected {least} or more, got {value}.")
    name = "".join(c if c.isalnum() else "-" for c in Path(options.model).name) or "model"
    report = options.output or Path(f"{name}.html")
    terminal.check_writable(report)

    from .. import series_report
    from ..language import series, series_measurement
    from ..language.corpus import CorpusError
    from ..language.tokens import open_tokens, prepared

    def tell(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    corpus = options.corpus or "english"
    try:
        checkpoints = series.open_series(options.model, options.revisions)
        for checkpoint in checkpoints:  # before any text is read
            series.embedding_shape(checkpoint, options.tensor)
        if (Path(corpus) / "header.json").is_file():
            tokens = open_tokens(corpus)
        else:
            tokenizer = options.tokenizer or series.tokenizer_file(checkpoints)
            tell(f"tokens of {corpus} with {tokenizer}")
            tokens = prepared(corpus, tokenizer=tokenizer, limit=options.limit)
        measured = series_measurement.measure(
            checkpoints,
            tokens,
            number=options.tokens or 300,
            attention=options.attention,
            **sizes,
            tensor=options.tensor,
            workers=os.cpu_count() or 1,
            progress=tell,
        )
    except series.SeriesError as error:
        raise BookError(str(error), Exit.MISSING) from None
    except (CorpusError, ValueError) as error:
        raise ParameterError(str(error)) from None
    made = {"command": shlex.join(["python", "-m", "staircase_lib", *sys.argv[1:]])}
    made |= {name: version(name) for name in ("torch", "safetensors", "tokenizers")}
    terminal.write_report(report, series_report.write_html(measured, {"corpus": corpus, **made}))
    if options.json:
        print(printable_json({**measured.facts, "rows": series_report.plain_rows(measured.rows)}))
    else:
        print(f"The report: {report.resolve().as_uri()}")
