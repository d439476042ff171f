"""The command line: ``python -m staircase_lib COMMAND``; ``--help`` tells more on each."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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
     `measure` and `count` also: the file holds no task, no text
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
}
ANYWHERE = ("measure", "count")  # commands that need no clone of the book


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

    measure = add("measure", "measure a task of your own: signatures, predicted stairs, training")
    measure.add_argument(
        "task",
        type=Path,
        metavar="TASK",
        help="CSV or Parquet: columns x1, x2, … (or one column sequence), label, optional weight",
    )
    measure.add_argument("--output", type=Path, metavar="FILE", help="report (default: TASK.html)")
    measure.add_argument("--json", action="store_true", help="print the numbers as JSON as well")
    measure.add_argument("--seeds", type=int, default=10, metavar="N", help="seeds (default: 10)")
    measure.add_argument("--steps", type=int, metavar="N", help="steps of AdamW (default: 1500)")
    measure.add_argument("--lr", type=float, help="learning rate of AdamW (default: 0.002)")
    measure.add_argument(
        "--gamma", type=float, help="initialization rate; larger is smaller (default: 1.3)"
    )
    measure.add_argument("--d", type=int, help="width of the model (default: 128)")
    measure.add_argument(
        "--orders", type=int, metavar="M", help="highest signature order (default: as time allows)"
    )
    measure.add_argument("--anchors", metavar="A,B,…", help="tokens to follow (default: all)")
    measure.add_argument(
        "--most-anchors",
        type=int,
        default=40,
        metavar="N",
        help="without --anchors, follow the N most frequent tokens (default: 40)",
    )
    measure.add_argument(
        "--by-position",
        action="store_true",
        help="the same word at another position is another token (the model sees no positions)",
    )

    count = add("count", "count the signatures of a text, and tell what its tokens are like")
    count.add_argument(
        "corpus",
        metavar="CORPUS",
        help="text file, .jsonl, .parquet, folder of these, hf:NAME, a named corpus such as "
        "default, or token ids: a folder of ours, .npy, .bin, or a folder of these",
    )
    count.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="where ids and counts are kept (default: NAME.counts)",
    )
    count.add_argument(
        "--vocab-size",
        type=int,
        metavar="V",
        help="tokens (default: 16384, or those of --tokenizer)",
    )
    count.add_argument("--words", action="store_true", help="whole words as tokens, not a BPE's")
    count.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="a vocabulary that is there: tokenizer.json, a folder with one, hf:NAME, or qwen",
    )
    count.add_argument("--dtype", metavar="TYPE", help="of ids in .bin files, such as uint16")
    count.add_argument(
        "--separator", type=int, metavar="ID", help="between documents, of ids in .npy and .bin"
    )
    count.add_argument(
        "--field", default="text", help="key or column with the text (default: text)"
    )
    count.add_argument(
        "--order", type=int, choices=(0, 1), default=0, help="pairs, or triples (default: 0)"
    )
    count.add_argument(
        "--tokens", metavar="A,B,…", help="tokens to tell about (order 1: to count, default all)"
    )
    count.add_argument(
        "--window", type=int, default=1, metavar="N", help="tokens away (default: 1)"
    )
    count.add_argument(
        "--direction", choices=("next", "previous", "both"), help="side of the window"
    )
    count.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="threads that count (default: the number of cores)",
    )
    count.add_argument(
        "--memory", type=int, default=1024, metavar="MB", help="for counting (default: 1024)"
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

    add("record", "copy the ledger of a complete cpu build to book/results, to be committed")
    return parser


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
        print(f"cannot write {place}: {error.strerror}; nothing is lost", file=sys.stderr)
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
    """Measure a task out of a file and write the report."""
    from .task_files import TaskFileError, read_task

    try:
        named = read_task(
            options.task,
            anchors=options.anchors.split(",") if options.anchors else None,
            most_anchors=options.most_anchors,
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
        settings = measurement.Settings(seeds=tuple(range(options.seeds)), **given)
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
    print(printable_json(found) if options.json else _in_words(found))


def _tokens(options: argparse.Namespace, folder: Path, progress: Callable[[int], None]) -> Any:
    """Token ids of the corpus: those that are there, or made from its text."""
    from .language.id_files import holds_ids, import_ids
    from .language.tokens import open_tokens, prepare

    corpus, shipped, size = options.corpus, options.tokenizer, options.vocab_size
    if (Path(corpus) / "header.json").is_file():
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


def _in_words(found: dict[str, Any]) -> str:
    names = ("tokens", "documents", "vocab_size", "pairs", "triples", "distinct")
    simple = {name: found[name] for name in names if name in found}
    lines = [f"{name.replace('_', ' '):>18}  {value:,}" for name, value in simple.items()]
    for name in ("most_predictable", "least_predictable"):
        if rows := found.get(name):
            lines += ["", f"{name.replace('_', ' ')}: bits of the next token, occurrences, token"]
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
    try:
        if file.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        file.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        problem = f"--output {file}: cannot write there: {error.strerror}"
        raise BookError(problem, Exit.CANNOT_WRITE) from None


def write_report(file: Path, page: str) -> None:
    """Write a page as a whole or not at all."""
    try:
        write_atomically(file, page)
    except OSError as error:
        problem = f"--output {file}: cannot write there: {error.strerror}"
        raise BookError(problem, Exit.CANNOT_WRITE) from None


COMMANDS = {
    "count": count_corpus,
    "measure": measure_task,
    "run": run_chapter,
    "book": build_book,
    "claims": print_claims,
    "status": print_status,
    "record": record_claims,
}

if __name__ == "__main__":
    sys.exit(main())
