"""A series of published checkpoints measured, step by step.

The measurements are those of :mod:`~staircase_lib.language.next_token_alignment`,
:mod:`~staircase_lib.language.kernel_probes` and :mod:`~staircase_lib.language.attention_path`,
against the signatures of any text in the model's own tokens. For what attention does the model
itself has to run; then ``transformers`` makes it from its own code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from staircase_lib.language import (
    attention_path,
    corpus_counts,
    kernel_probes,
    next_token_alignment,
)
from staircase_lib.language.series import (
    Checkpoint,
    SeriesError,
    embedding_rows,
    embedding_shape,
)
from staircase_lib.language.tokens import TokenFile
from staircase_lib.language.vocabulary import token_texts, vocabulary_size

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Measured", "measure", "read_attention"]

_BATCH = 16  # windows that a model reads at once


def read_attention(
    checkpoint: Checkpoint, tokens: NDArray[np.int64], positions: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What attention writes and where it looks, at one position of each window.

    Parameters
    ----------
    checkpoint : Checkpoint
        All of its weights are read, and fetched if need be.
    tokens : int64 array, shape (N, L)
    positions : int64 array, shape (N,)

    Returns
    -------
    written : float32 array, shape (B, N, d)
        Output of each block's attention, as it is added to the stream.
    attention : float32 array, shape (B, N, L)
        Averaged over heads.

    Raises
    ------
    SeriesError
        If the model needs code of its own, lacks weights, or its attention cannot be told.
    """
    import torch

    model = _model(checkpoint)
    modules = _attention_modules(checkpoint, model)
    outputs: dict[int, Any] = {}

    def keep(block: int) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            outputs[block] = output[0] if isinstance(output, tuple) else output

        return hook

    hooks = [module.register_forward_hook(keep(b)) for b, module in enumerate(modules)]
    written, attention = [], []
    try:
        with torch.no_grad():
            for start in range(0, len(tokens), _BATCH):
                x = torch.as_tensor(tokens[start : start + _BATCH])
                at = torch.as_tensor(positions[start : start + _BATCH])
                rows = torch.arange(len(x))
                found = model(input_ids=x, output_attentions=True, use_cache=False)
                weights = found.attentions
                if weights is None or len(weights) != len(modules) or None in weights:
                    raise SeriesError(
                        f"{checkpoint}: expected attention weights of {len(modules)} blocks; the "
                        f"model gives {0 if weights is None else len(weights)}."
                    )
                written.append(torch.stack([outputs[b][rows, at] for b in range(len(modules))]))
                attention.append(torch.stack([w.mean(1)[rows, at] for w in weights]))
    finally:
        for hook in hooks:
            hook.remove()
    return (
        torch.cat(written, dim=1).float().numpy(),
        torch.cat(attention, dim=1).float().numpy(),
    )


def _model(checkpoint: Checkpoint) -> Any:
    """The model, made by transformers' own code, with every weight read."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    patterns = ["*.json", "*.safetensors"]
    if not any(str(path).endswith(".safetensors") for path in checkpoint.weights.values()):
        patterns.append("pytorch_model*.bin")
    folder = checkpoint.fetched(patterns)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        made: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            trust_remote_code=False,
            local_files_only=True,
            attn_implementation="eager",  # the only one that gives weights
            dtype=torch.float32,
            output_loading_info=True,
        )
    except (ValueError, KeyError, OSError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise SeriesError(
            f"{checkpoint}: transformers cannot make this model from its own code: {first}"
        ) from None
    model, told = made
    missing = sorted(told["missing_keys"])
    if missing:
        raise SeriesError(
            f"{checkpoint}: {len(missing)} weights are missing, such as {missing[0]}; they would "
            f"be random."
        )
    return model.eval()


def _attention_modules(checkpoint: Checkpoint, model: Any) -> list[Any]:
    """The self-attention of each block, in order."""
    named = [m for m in model.modules() if type(m).__name__.endswith("Attention")]
    found = [m for m in named if not any(inner in named for inner in m.modules() if inner is not m)]
    if not found:
        raise SeriesError(f"{checkpoint}: no attention in its blocks; is it a Transformer?")
    if "residual" in inspect.signature(found[0].forward).parameters:
        raise SeriesError(
            f"{checkpoint}: its attention adds the residual stream itself, so what it writes "
            f"cannot be told apart; measure the embeddings only."
        )
    return found


@dataclass(frozen=True)
class Measured:
    """A series, measured.

    Attributes
    ----------
    rows : DataFrame
        As :func:`~staircase_lib.language.similarity.tidy_row`, with ``step`` and ``revision``.
    tokens : list of str
        Texts of the chosen tokens, most frequent first.
    facts : dict of str to str
        What was measured: series, revisions, corpus, sizes.
    """

    rows: pd.DataFrame
    tokens: list[str]
    facts: dict[str, str]


def _check_tokenizer(series: Sequence[Checkpoint], tokenizer: Tokenizer, rows: int) -> None:
    """Refuse a tokenizer that cannot be the model's; matrices may be padded with a few rows."""
    size = vocabulary_size(tokenizer)
    if size > rows or size < 0.8 * rows:
        raise SeriesError(
            f"{series[0].name}: expected a tokenizer for {rows:,} rows of embeddings, got one of "
            f"{size:,} tokens; it is another model's."
        )


def measure(
    series: Sequence[Checkpoint],
    tokens: TokenFile,
    *,
    number: int = 300,
    attention: bool = False,
    windows: int = 300,
    length: int = 64,
    tensor: str | None = None,
    workers: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Measured:
    """Claims 6.5 to 6.7 over the steps of a series.

    Parameters
    ----------
    series : sequence of Checkpoint
        From :func:`~staircase_lib.language.series.open_series`.
    tokens : TokenFile
        The corpus, in the model's own tokens.
    number : int
        ``A``, the most frequent tokens.
    attention : bool
        Run the models too, for 6.7.
    windows, length : int
        ``N`` windows of ``L`` tokens that they read.
    tensor : str, optional
        As in :func:`~staircase_lib.language.series.embedding_rows`.
    workers : int
        Threads that count.
    progress : callable, optional
        Called with a line about every revision.

    Raises
    ------
    SeriesError
        As the functions that it calls, before anything is counted where possible.
    ValueError
        If the corpus has too few tokens.
    """
    tell = progress or (lambda line: None)
    shapes = {checkpoint: embedding_shape(checkpoint, tensor) for checkpoint in series}
    rows, width = shapes[series[0]]
    for checkpoint, shape in shapes.items():
        if shape != (rows, width):
            raise SeriesError(
                f"{checkpoint}: its embeddings have shape {shape}, those of "
                f"{series[0].revision} {(rows, width)}; they are not of one series."
            )
    tokenizer = tokens.tokenizer
    if tokenizer is not None:
        _check_tokenizer(series, tokenizer, rows)
    if tokens.vocab_size > rows:
        raise SeriesError(
            f"{tokens.folder}: expected token ids below {rows:,}, the rows of the embeddings, got "
            f"a vocabulary of {tokens.vocab_size:,}; encode the text with the model's tokenizer."
        )
    tell(f"counting {tokens.length:,} tokens")
    counts = corpus_counts.count_corpus(
        tokens.ids, rows, number, separator=tokens.separator, workers=workers
    )
    references = next_token_alignment.references(counts)
    probes = kernel_probes.signature_probes(counts)
    heard, sampled = None, None
    if attention:
        sampled = attention_path.sample_windows(tokens.ids, length, windows)
        heard = attention_path.attention_reference(counts, *sampled)
    found = []
    for checkpoint in series:
        E = embedding_rows(checkpoint, counts.tokens, tensor)
        measured = next_token_alignment.alignment_rows(E, references)
        measured += kernel_probes.probe_rows(E, probes)
        if heard is not None and sampled is not None:
            measured += attention_path.attention_rows(*read_attention(checkpoint, *sampled), heard)
        about = {"step": checkpoint.step, "revision": checkpoint.revision}
        found += [{**about, **row} for row in measured]
        tell(f"{checkpoint.revision}: alignment {measured[0]['value']:.3f}")
    often = counts.occurrences[counts.tokens]
    texts = (
        token_texts(tokenizer, counts.tokens)
        if tokenizer is not None
        else [str(t) for t in counts.tokens]
    )
    return Measured(
        pd.DataFrame(found),
        texts,
        {
            "series": series[0].name,
            "revisions": ", ".join(checkpoint.revision for checkpoint in series),
            "embeddings": f"{rows:,} rows of {width:,}",
            "corpus": f"{tokens.length:,} tokens, {tokens.documents:,} documents",
            "tokens compared": f"{len(often):,}, each {int(often[-1]):,} times or more",
        },
    )
