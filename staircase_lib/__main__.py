"""The command line: ``python -m staircase_lib COMMAND``; ``--help`` tells more on each."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from .chapters import PROFILES, BookError, Exit, ParameterError, project_root, write_atomically
from .notebooks import CANNOT_WRITE, CELL_TIMEOUT
from .printable import printable, printable_json

EXIT_CODES = """\
exit codes:
  0  done; for `run` and `book`: the last cell of every chapter ran
  1  something else failed: a page is broken, chapters stopped for several reasons
  2  the command line is wrong: unknown option or parameter, value of another type; for
     `measure`, `count` and `pretrain` also: the file holds nothing to work on
  3  a cell raised an error
  4  a kernel died: killed, out of memory, os._exit
  5  a cell took longer than --timeout
  6  a chapter ended itself before its last cell: sys.exit, exit, quit
  7  the kernel did not start
  8  a chapter, a file or a package that the command needs is missing
  9  a file cannot be written: full disk, read-only folder
  10  another process is writing there
  130, 143  interrupted by Ctrl-C, by SIGTERM; no kernel is left running
"""
BOOK_PACKAGES = ("ipykernel", "jupytext", "nbformat", "papermill", "yaml")
NEEDS_OF_REPORTS = ("altair", "vl_convert", "myst_nb")
NEEDS = {
    "claims": (),
    "measure": ("torch", "pandas", *NEEDS_OF_REPORTS),
    "count": ("pandas", "tokenizers"),
    "pretrain": ("torch", "pandas", "pyarrow", "safetensors", "tokenizers"),
}
NEEDS_OF_SERIES = ("tokenizers", "safetensors", "huggingface_hub")
OF_TASK = ("seeds", "steps", "lr", "gamma", "d", "orders", "anchors", "most_anchors", "by_position")
OF_SERIES = (
    *("revisions", "corpus", "limit", "tokenizer", "tokens", "attention", "windows", "length"),
    "tensor",
)
PADDED = 151_936  # the vocabulary of Qwen's tokenizer, as configurations.paper_700m has it
ANYWHERE = ("measure", "count", "pretrain")  # commands that need no clone of the book


def at_most(largest: int) -> Callable[[str], int]:
    """Type of an option: a whole number that is not larger than anything sensible."""

    def whole_number(text: str) -> int:
        value = int(text)
        if value > largest:
            raise argparse.ArgumentTypeError(f"expected {largest:,} at most, got {value:,}")
        return value

    return whole_number


def positive(text: str) -> float:
    """Type of an option: a finite number above zero."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text}")
    return value


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="python -m staircase_lib",
        description="Run the chapters of Context Staircase, build the book, read its claims.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    run = add("run", "execute one chapter and write it as a notebook with outputs")
    run.add_argument(
        "chapter", metavar="CHAPTER", help="04_feed_forward, or feed_forward for short"
    )
    run.add_argument(
        "--profile", choices=PROFILES, default="cpu", help="sizes to run at (default: cpu)"
    )
    run.add_argument(
        "-p",
        dest="parameters",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="give a parameter of the chapter a value; lists as JSON; may be repeated",
    )
    run.add_argument(
        "--output", type=Path, metavar="DIR", help="folder to write to (default: _build/runs)"
    )
    run.add_argument(
        "--show",
        action="store_true",
        help="print the parameters, with their values at every profile, and run nothing",
    )
    run.add_argument(
        "--log-output", action="store_true", help="print what the cells print, as they run"
    )

    book = add("book", "execute every stale chapter and build the site")
    book.add_argument(
        "--profile", choices=PROFILES, default="cpu", help="sizes to run at (default: cpu)"
    )
    book.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="chapters that run at the same time (default: the number of cores)",
    )
    for command in (run, book):
        command.add_argument(
            "--timeout",
            type=int,
            default=CELL_TIMEOUT,
            metavar="SECONDS",
            help=f"give up when one cell takes longer (default: {CELL_TIMEOUT})",
        )

    claims = add("claims", "print the ledger of claims: the recorded one, or that of a build")
    claims.add_argument("--json", action="store_true", help="print the rows as JSON")
    claims.add_argument(
        "--profile", choices=PROFILES, help="the ledger of the last build at this profile"
    )

    status = add(
        "status", "tell of each chapter whether it is fresh, or why not, and how it last ran"
    )
    status.add_argument("--profile", choices=PROFILES, default="cpu", help="profile (default: cpu)")

    measure = add(
        "measure",
        "measure a task of your own: signatures, predicted stairs, training; or, with --model, a "
        "published series of checkpoints: embeddings against the signatures of a text",
    )
    measure.add_argument(
        "--output", type=Path, metavar="FILE", help="report (default: TASK.html, NAME.html)"
    )
    measure.add_argument("--json", action="store_true", help="print the numbers as JSON as well")
    task = measure.add_argument_group("a task")
    task.add_argument(
        "task",
        type=Path,
        nargs="?",
        metavar="TASK",
        help="CSV or Parquet: columns x1, x2, … (or one column sequence), label, optional weight",
    )
    task.add_argument("--seeds", type=int, metavar="N", help="seeds (default: 10)")
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

    count = add("count", "count the signatures of a text, and tell what its tokens are like")
    _add_corpus(count)
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
        "--window", type=at_most(1000), default=1, metavar="N", help="tokens away (default: 1)"
    )
    count.add_argument(
        "--direction", choices=("next", "previous", "both"), help="side of the window"
    )
    count.add_argument(
        "--workers",
        type=at_most(1024),
        default=os.cpu_count() or 1,
        metavar="N",
        help="threads that count (default: the number of cores)",
    )
    count.add_argument(
        "--memory",
        type=at_most(2**24),
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
        type=int,
        default=100,
        metavar="N",
        help="tokens with fewer occurrences are neither ranked nor neighbours (default: 100)",
    )
    count.add_argument(
        "--output", type=Path, metavar="FILE", help="write the report as one HTML file (order 0)"
    )
    count.add_argument("--json", action="store_true", help="print the report as JSON")

    pretrain = add("pretrain", "train a language model on a text; under torchrun in many processes")
    _add_corpus(pretrain)
    pretrain.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where ids, checkpoints and rows are kept (default: NAME.pretrain)",
    )
    pretrain.add_argument(
        "--size", choices=("tiny", "small", "paper_700m"), default="tiny", help="(default: tiny)"
    )
    pretrain.add_argument(
        "--gamma", type=float, default=1.0, help="initialization rate (default: 1)"
    )
    pretrain.add_argument("--steps", type=int, default=1000, metavar="N", help="(default: 1000)")
    pretrain.add_argument(
        "--batch", type=int, default=32, metavar="N", help="sequences a step (default: 32)"
    )
    pretrain.add_argument(
        "--length", type=int, metavar="L", help="tokens of a sequence (default: as the size has it)"
    )
    pretrain.add_argument("--lr", type=float, default=1e-3, help="highest rate (default: 0.001)")
    pretrain.add_argument("--weight-decay", type=float, default=0.1, help="(default: 0.1)")
    pretrain.add_argument("--epsilon", type=float, help="of the norms (default: the size's own)")
    pretrain.add_argument(
        "--warmup", type=int, metavar="N", help="steps of warm-up (default: a fiftieth)"
    )
    pretrain.add_argument(
        "--seed", type=at_most(2**62), default=0, metavar="N", help="(default: 0)"
    )
    pretrain.add_argument(
        "--accumulate", type=int, default=1, metavar="N", help="parts of a batch (default: 1)"
    )
    pretrain.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="float32", help="of the products"
    )
    pretrain.add_argument("--compile", action="store_true", help="compile with torch.compile")
    pretrain.add_argument(
        "--checkpoint-every", type=int, default=1000, metavar="N", help="steps (default: 1000)"
    )
    pretrain.add_argument(
        "--measure-every", type=int, metavar="N", help="steps (default: a twentieth)"
    )
    pretrain.add_argument(
        "--loss-chunk",
        type=int,
        default=1024,
        metavar="N",
        help="positions whose logits exist at a time; on a GPU some thousands (default: 1024)",
    )
    pretrain.add_argument(
        "--anchors",
        type=int,
        default=300,
        metavar="N",
        help="most frequent tokens whose embeddings are kept and compared with their signatures "
        "(default: 300; 0: none)",
    )
    pretrain.add_argument(
        "--held-out",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the ids, at their end, that are not trained on: what attention writes there is "
        "compared with the signatures of what it looks at (default: 0: none)",
    )
    pretrain.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    pretrain.add_argument(
        "--estimate", action="store_true", help="print what the run costs, and stop"
    )
    pretrain.add_argument(
        "--rate",
        type=positive,
        metavar="TFLOPS",
        help="operations a second of all processes together, for the hours of the estimate",
    )

    add("record", "copy the ledger of a complete cpu build to book/results, to be committed")
    return parser


def _add_corpus(command: argparse.ArgumentParser) -> None:
    """The options of commands that read token ids, or make them from a text."""
    command.add_argument(
        "corpus",
        metavar="CORPUS",
        help="text file, .jsonl, .parquet, folder of these, hf:NAME, a named corpus such as "
        "default, or token ids: a folder of ours, .npy, .bin, or a folder of these",
    )
    command.add_argument(
        "--vocab-size",
        type=at_most(2**31),
        metavar="V",
        help="tokens (default: 16384, or those of --tokenizer)",
    )
    command.add_argument("--words", action="store_true", help="whole words as tokens, not a BPE's")
    command.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="a vocabulary that is there: tokenizer.json, a folder with one, hf:NAME, or qwen",
    )
    command.add_argument("--dtype", metavar="TYPE", help="of ids in .bin files, such as uint16")
    command.add_argument(
        "--separator", type=int, metavar="ID", help="between documents, of ids in .npy and .bin"
    )
    command.add_argument(
        "--field", default="text", help="key or column with the text (default: text)"
    )
    command.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="characters to read, of each text of a named corpus (default: all)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    options = make_parser().parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    options.typed = shlex.join(["python", "-m", "staircase_lib", *given])
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        needed = NEEDS.get(options.command, BOOK_PACKAGES)
        if options.command == "count" and options.output:
            needed = (*needed, *NEEDS_OF_REPORTS)
        missing = [name for name in needed if find_spec(name) is None]
        if missing:
            raise BookError(
                f"{options.command} needs {', '.join(missing)}, which context-staircase[book] "
                'brings: in your clone, pip install -e ".[book]"',
                Exit.MISSING,
            )
        root = Path() if options.command in ANYWHERE else project_root()
        COMMANDS[options.command](root, options)
    except BookError as error:
        print(error, file=sys.stderr)
        return error.code
    except BrokenPipeError:  # whoever reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        place = error.filename or "a file"
        print(f"cannot open or write {place}: {error.strerror}; nothing is lost", file=sys.stderr)
        return Exit.CANNOT_WRITE
    except KeyboardInterrupt as interrupt:
        print("interrupted", file=sys.stderr)
        return 128 + (interrupt.args or (signal.SIGINT,))[0]
    return 0


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt(number)


def run_chapter(root: Path, options: argparse.Namespace) -> None:
    """Execute one chapter with the given parameters."""
    from . import book, chapters, notebooks

    chapter = chapters.find_chapter(chapters.read_chapters(root), options.chapter)
    overrides = {
        name: chapters.parse_value(chapter, name, text) for name, text in options.parameters
    }
    if options.show:
        print(chapters.describe_profiles(chapter, options.profile, overrides))
        return
    folder = options.output or root / "_build" / "runs"
    target = folder.resolve() / f"{chapter.name}.ipynb"
    job = book.make_job(
        root,
        options.profile,
        chapter,
        target.with_suffix(".failed.ipynb"),
        overrides=overrides,
        timeout=options.timeout,
        log_output=options.log_output,
    )
    values = {**chapter.parameters, **job.parameters}
    parts = book.chapter_parts(root, chapter, values)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        problem = f"--output {folder}: cannot write there: {error.strerror}"
        raise BookError(problem, Exit.CANNOT_WRITE) from None
    print(f"{chapter.name}  running…", flush=True)
    _, outcome = notebooks.execute_all([job], workers=1)
    assert isinstance(outcome, notebooks.Outcome)
    if outcome.failure is not None:
        raise BookError(outcome.report, outcome.failure.code)
    book.keep(outcome, options.profile, parts, target)
    print(f"{chapter.name}  done in {outcome.seconds:.0f} s: {target}")


def build_book(root: Path, options: argparse.Namespace) -> None:
    """Build the site and say where it is."""
    from . import book

    first_page = book.build_book(root, options.profile, max(1, options.jobs), options.timeout)
    print(f"The book: {first_page.as_uri()}")


def print_claims(root: Path, options: argparse.Namespace) -> None:
    """Print a ledger as a table or as JSON."""
    from . import book

    rows = book.read_ledger(root, options.profile)
    if options.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for row in rows:
        value, low, high = (
            "undefined" if row[name] is None else f"{row[name]:.4g}"
            for name in ("value", "low", "high")
        )
        print(f"{row['id']:5} {row['verdict']:14} {row['statement']}")
        print(
            f"      {row['statistic']}: {value} [{low}, {high}], threshold {row['threshold']}, "
            f"{row['seeds']} seeds, {row['profile']}, {row['commit']}"
        )


def print_status(root: Path, options: argparse.Namespace) -> None:
    """Print a line for each chapter that has code."""
    from . import book

    for row in book.status_rows(root, options.profile):
        print(f"{row['chapter']:24} {'; '.join(row['stale']) or 'fresh'}")
        if "date" in row:
            versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
            print(
                f"{'':24} {options.profile}, {row['commit']}, {row['date']}, "
                f"{row['seconds']:.0f} s, {row['memory_mb']} MB, {row['device']}, {versions}"
            )


def record_claims(root: Path, options: argparse.Namespace) -> None:
    """Record the ledger of the cpu build."""
    from . import book

    print(f"{book.record(root)} claims recorded in {book.RECORDED_LEDGER}")


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

    from .task_files import TaskFileError, read_task

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
    check_writable(report)
    if options.gamma is not None and not 0 <= options.gamma <= 10:
        raise ParameterError(f"--gamma: expected a rate from 0 to 10, got {options.gamma}.")

    from . import measurement

    given = {name: getattr(options, name) for name in ("d", "gamma", "steps", "lr", "orders")}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        settings = measurement.Settings(seeds=tuple(range(seeds)), **given)
        measurement.most_rows(named.task, settings)
    except ValueError as error:
        raise ParameterError(f"--{error}") from None
    print(f"{options.task}: {named.task}", *named.remarks, sep="\n", file=sys.stderr)

    def tell(what: str) -> None:
        print(what, file=sys.stderr, flush=True)

    try:
        measured = measurement.measure(named.task, settings, named.names, progress=tell)
    except FloatingPointError as error:
        raise BookError(str(error)) from None
    for note in measured.notes:
        print(note, file=sys.stderr)

    from .report import numbers_json, write_html

    write_report(report, write_html(measured))
    if options.json:
        print(numbers_json(measured))
    else:
        print(f"The report: {report.resolve().as_uri()}")


def measure_series(options: argparse.Namespace) -> None:
    """Measure a published series of checkpoints and write the report."""
    needed = [*NEEDS_OF_SERIES, *(["transformers"] if options.attention else [])]
    if missing := [name for name in needed if find_spec(name) is None]:
        raise BookError(
            f"measure --model needs {', '.join(missing)}, which context-staircase[series] brings: "
            'in your clone, pip install -e ".[series]"',
            Exit.MISSING,
        )
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
    check_writable(report)

    from . import series_report
    from .language import series
    from .language.corpus import CorpusError
    from .language.tokens import open_tokens, prepared

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
        measured = series.measure(
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
    write_report(report, series_report.write_html(measured, {"corpus": corpus, **made}))
    if options.json:
        print(printable_json({**measured.facts, "rows": series_report.plain_rows(measured.rows)}))
    else:
        print(f"The report: {report.resolve().as_uri()}")


def count_corpus(root: Path, options: argparse.Namespace) -> None:
    """Count the signatures of a corpus and print what its tokens are like."""
    from .language import counting, folders, summary
    from .language.corpus import CorpusError

    name = Path(options.corpus).name.replace(":", "-") or "corpus"
    folder = options.folder or Path(f"{name}.counts")
    if options.output:
        if options.order:
            raise ParameterError("--output: the report tells of pairs; leave --order at 0.")
        here = options.output.exists() and Path(options.corpus).exists()
        if here and options.output.samefile(options.corpus):
            raise ParameterError(f"--output {options.output}: that is the corpus; give another.")
        check_writable(options.output)
    tell = _Counter(sys.stderr)
    try:
        tokens = _tokens(options, folder, lambda done: tell(done, None, "tokens written"))
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
        found = {"tokens": tokens.length, "triples": int(counts.sum()), "distinct": counts.nnz}
    else:
        found = summary.report(tokens, counts, asked=asked, form=options.form, least=options.least)
    if options.output:
        from . import corpus_report

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
        write_report(options.output, page)
        print(f"The report: {options.output.resolve().as_uri()}", file=sys.stderr)
    print(printable_json(found) if options.json else _in_words(found, options.window))


def pretrain_model(root: Path, options: argparse.Namespace) -> None:
    """Say what a training run costs, then train, or go on with it."""
    from . import models
    from .language import checkpoints, configurations, folders, processes
    from .language.corpus import CorpusError
    from .language.plan import PretrainConfig, cost
    from .language.pretrain import pretrain, tokenizer_hash

    make = getattr(configurations, options.size)
    padded = options.size == "paper_700m" and options.vocab_size is None
    given = {"length": options.length, "epsilon": options.epsilon}
    given = {name: value for name, value in given.items() if value is not None}
    name = Path(options.corpus).name.replace(":", "-") or "corpus"
    folder = options.folder or Path(f"{name}.pretrain")
    tell = _Counter(sys.stderr)
    with processes.together() as device:
        first = processes.rank() == 0
        try:
            vocab_size = PADDED if padded else options.vocab_size or 16384
            sketch = configurations.unallocated(make, vocab_size, **given)
            wanted = ("steps", "batch", "lr", "seed", "accumulate", "precision", "compile")
            wanted = (*wanted, "weight_decay", "loss_chunk", "checkpoint_every", "measure_every")
            config = PretrainConfig(
                **{name: getattr(options, name) for name in wanted},
                length=sketch.length,
                warmup=options.steps // 50 if options.warmup is None else options.warmup,
            )
            if not 0 <= options.gamma <= 30:
                raise ParameterError(f"--gamma: expected a rate from 0 to 30, got {options.gamma}.")
            if first:
                print(_cost_in_words(cost(sketch, config), vocab_size, options.rate), flush=True)
            if options.estimate:
                return
            if not options.resume and checkpoints.latest(folder):
                raise ParameterError(
                    f"--folder {folder}: holds a run; give --resume to go on with it, or another "
                    f"folder."
                )
            tokens = processes.on_first(
                lambda: _tokens(options, folder, lambda done: tell(done, None, "tokens written"))
            )
            model = make(max(PADDED, tokens.vocab_size) if padded else tokens.vocab_size, **given)
            if first and model.vocab_size != vocab_size:  # a text can have fewer tokens
                print(_cost_in_words(cost(model, config), model.vocab_size, options.rate))
            models.initialize_(model, options.gamma, models.seeded([options.seed]))
            trained_on, held = _split(tokens.ids, options.held_out, model.length)
            most = len(trained_on) // model.length
            if 0 < most < options.batch:
                raise ValueError(
                    f"--batch: expected {most:,} sequences at most, as many as the text has of "
                    f"{model.length} tokens, got {options.batch:,}."
                )
            observe, chosen = None, ()
            if options.anchors:
                observe, chosen = _observer(tokens, trained_on, held, model.length, options)
            history = pretrain(
                model.to(device),
                trained_on,
                replace(config, keep_rows=chosen),
                folder=folder,
                observe=observe,
                progress=tell,
                vocabulary=tokenizer_hash(tokens),
            )
        except (CorpusError, ValueError) as error:
            raise ParameterError(str(error)) from None
        except folders.FolderInUse as error:
            raise BookError(str(error), Exit.IN_USE) from None
        except (checkpoints.CheckpointError, FloatingPointError, MemoryError) as error:
            raise BookError(str(error)) from None
        if first:
            print(*history.notes, sep="\n", end="\n" if history.notes else "", file=sys.stderr)
            print(f"loss {history.losses[-1, 0]:.4f} after {config.steps:,} steps; {folder}")


def _split(ids: Any, share: float, length: int) -> tuple[Any, Any]:
    """Ids to train on, and those that are held out."""
    if not 0 <= share < 1:
        raise ValueError(f"held-out: expected a share from 0 to below 1, got {share}.")
    cut = round(len(ids) * (1 - share))
    if share and len(ids) - cut < length:
        raise ValueError(
            f"held-out: expected {length} ids at least, one sequence, got {len(ids) - cut}; raise "
            f"--held-out, or take a longer text."
        )
    return ids[:cut], ids[cut:]


def _observer(
    tokens: Any, ids: Any, held: Any, length: int, options: argparse.Namespace
) -> tuple[Callable[[int, Any], Any], tuple[int, ...]]:
    """What compares a model with signatures of the most frequent tokens; these tokens."""
    from .language import observables, processes

    known: dict[str, Any] = {}

    def count() -> tuple[int, ...]:
        number = min(options.anchors, tokens.vocab_size - 1)
        counts = observables.count_corpus(
            ids, tokens.vocab_size, number, separator=tokens.separator, triples=False
        )
        known["signatures"] = observables.references(counts)
        if len(held):
            known["places"] = observables.sample_windows(held, length, seed=options.seed)
            known["heard"] = observables.attention_reference(counts, *known["places"])
        return tuple(int(token) for token in counts.tokens)

    chosen = processes.on_first(count)

    def observe(step: int, model: Any) -> Any:
        embeddings = model.W_E[list(chosen)].float().cpu().numpy()
        rows = observables.alignment_rows(embeddings, known["signatures"])
        if len(held):
            written = observables.read_attention(model, *known["places"])
            rows = [*rows, *observables.attention_rows(*written, known["heard"])]
        return rows

    return observe, chosen


def _cost_in_words(found: dict[str, float], vocab_size: int, rate: float | None) -> str:
    lines = [
        f"{found['parameters']:>18,}  parameters with a vocabulary of {vocab_size:,}",
        f"{found['tokens']:>18,}  tokens read",
        f"{found['flops']:>18.3g}  floating-point operations",
        f"{found['state_bytes'] / 1e9:>18.3g}  GB of parameters, gradients and averages",
        f"{found['checkpoint_bytes'] / 1e9:>18.3g}  GB a checkpoint",
    ]
    if rate:
        hours = found["flops"] / (rate * 1e12) / 3600
        lines.append(f"{hours:>18.3g}  hours at {rate:g} TFLOP/s")
    return "\n".join(lines)


def _tokens(options: argparse.Namespace, folder: Path, progress: Callable[[int], None]) -> Any:
    """Token ids of the corpus: those that are there, or made from its text."""
    from .language.id_files import holds_ids, import_ids
    from .language.tokens import open_tokens, prepare

    corpus, shipped, size = options.corpus, options.tokenizer, options.vocab_size
    ours = (Path(corpus) / "header.json").is_file()
    if options.limit is not None and (ours or holds_ids(corpus)):
        raise ValueError("limit: expected with text only, not with ids, which are there already.")
    if ours:
        return open_tokens(corpus)
    print(f"tokens of {corpus} in {folder}", file=sys.stderr, flush=True)
    if holds_ids(corpus):
        given = {name: getattr(options, name) for name in ("dtype", "separator", "tokenizer")}
        return import_ids(corpus, folder / "tokens", size, **given, progress=progress)
    for name in ("dtype", "separator"):
        if getattr(options, name) is not None:
            raise ValueError(f"{name}: expected with ids in .npy or .bin only, not with text.")
    if shipped is not None and size is not None:
        raise ValueError("vocab-size: expected without --tokenizer, which has its own size.")
    return prepare(
        corpus,
        folder / "tokens",
        size or 16384,
        words=options.words,
        tokenizer=shipped,
        field=options.field,
        limit=options.limit,
        progress=progress,
    )


class _Counter:
    """Progress of a long count: a line every few seconds, not one a step."""

    def __init__(self, stream: Any, every: float = 5.0) -> None:
        self.stream, self.every, self.last = stream, every, time.monotonic()

    def __call__(self, done: int, total: int | None, what: str) -> None:
        if time.monotonic() - self.last >= self.every or done == total:
            self.last = time.monotonic()
            of = f" of {total:,}" if total else ""
            print(f"{done:,}{of} {what}", file=self.stream, flush=True)


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


def _in_words(found: dict[str, Any], window: int = 1) -> str:
    names = ("tokens", "documents", "vocab_size", "pairs", "triples", "distinct")
    simple = {name: found[name] for name in names if name in found}
    lines = [f"{name.replace('_', ' '):>18}  {value:,}" for name, value in simple.items()]
    for name in ("most_predictable", "least_predictable"):
        if rows := found.get(name):
            told = "bits of the next token, occurrences, token"
            if window > 1:
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
    return "\n".join(lines)


def check_writable(file: Path) -> None:
    """Refuse a file that cannot be written, before the work that would fill it."""
    place = file.resolve()  # of a link, what it leads to
    try:
        if place.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if place.exists() and not place.is_file():
            raise OSError(0, "it is no ordinary file")
        place.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place.parent).close()
        with place.open("rb") if place.exists() else io.BytesIO() as there:
            beginning = there.read(200).lower()
    except OSError as error:
        problem = f"--output {file}: cannot write there: {error.strerror}"
        raise BookError(problem, Exit.CANNOT_WRITE) from None
    if beginning.strip() and b"<!doctype html" not in beginning:
        raise ParameterError(f"--output {file}: is there and is no HTML page; give another file.")


def write_report(file: Path, page: str) -> None:
    """Write a page as a whole or not at all."""
    check_writable(file)
    try:
        write_atomically(file.resolve(), page)
    except OSError as error:
        problem = f"--output {file}: cannot write there: {error.strerror}"
        raise BookError(problem, Exit.CANNOT_WRITE) from None


COMMANDS = {
    "count": count_corpus,
    "pretrain": pretrain_model,
    "measure": measure_task,
    "run": run_chapter,
    "book": build_book,
    "claims": print_claims,
    "status": print_status,
    "record": record_claims,
}

if __name__ == "__main__":
    sys.exit(main())
