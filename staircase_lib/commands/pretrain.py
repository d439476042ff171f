"""``pretrain``: a language model trained on a text; under torchrun in many processes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..chapters import BookError, Exit, ParameterError
from . import corpora, terminal

PADDED = 151_936  # the vocabulary of Qwen's tokenizer, as configurations.paper_700m has it


def declare(commands: terminal.Commands) -> None:
    """Declare the command."""
    pretrain = terminal.add(
        commands,
        "pretrain",
        "train a language model on a text; under torchrun in many processes",
        pretrain_model,
        needs=("torch", "pandas", "pyarrow", "safetensors", "tokenizers"),
        in_clone=False,
    )
    corpora.add_corpus(pretrain)
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
        "--seed", type=terminal.at_most(2**62), default=0, metavar="N", help="(default: 0)"
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
        type=terminal.positive,
        metavar="TFLOPS",
        help="operations a second of all processes together, for the hours of the estimate",
    )


def pretrain_model(root: Path, options: argparse.Namespace) -> None:
    """Say what a training run costs, then train, or go on with it."""
    from .. import models
    from ..language import checkpoints, configurations, folders, processes
    from ..language.corpus import CorpusError
    from ..language.plan import PretrainConfig, cost
    from ..language.pretrain import pretrain, tokenizer_hash

    make = getattr(configurations, options.size)
    padded = options.size == "paper_700m" and options.vocab_size is None
    given = {"length": options.length, "epsilon": options.epsilon}
    given = {name: value for name, value in given.items() if value is not None}
    name = Path(options.corpus).name.replace(":", "-") or "corpus"
    folder = options.folder or Path(f"{name}.pretrain")
    tell = terminal.Counter(sys.stderr)
    with processes.together() as device:
        first = processes.rank() == 0
        try:
            vocab_size = PADDED if padded else options.vocab_size or corpora.VOCAB_SIZE
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
                lambda: corpora.tokens(
                    options, folder, lambda done: tell(done, None, "tokens written")
                )
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
    from ..language import attention_path, corpus_counts, next_token_alignment, processes

    known: dict[str, Any] = {}

    def count() -> tuple[int, ...]:
        number = min(options.anchors, tokens.vocab_size - 1)
        counts = corpus_counts.count_corpus(
            ids, tokens.vocab_size, number, separator=tokens.separator, triples=False
        )
        known["signatures"] = next_token_alignment.references(counts)
        if len(held):
            known["places"] = attention_path.sample_windows(held, length, seed=options.seed)
            known["heard"] = attention_path.attention_reference(counts, *known["places"])
        return tuple(int(token) for token in counts.tokens)

    chosen = processes.on_first(count)

    def observe(step: int, model: Any) -> Any:
        embeddings = model.W_E[list(chosen)].float().cpu().numpy()
        rows = next_token_alignment.alignment_rows(embeddings, known["signatures"])
        if len(held):
            written = attention_path.read_attention(model, *known["places"])
            rows = [*rows, *attention_path.attention_rows(*written, known["heard"])]
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
