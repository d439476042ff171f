r"""Language models by size, from two minutes on a laptop to the paper's 0.7B, and what they cost.

Each function returns a :class:`~staircase_lib.language.transformer.Transformer` whose parameters
are still zero. All have rotary positions, SwiGLU and an unembedding of their own unless told
otherwise: of the variants of 24 blocks of width 1024 with 16 heads and hidden width 4096, this is
the one that has the 0.7 billion parameters that the paper states; which it used, it does not say.

**Epsilon** of the norms is ours as well, and shrinks with the width: 1e-5, 1e-6 and 1e-8. An
embedding's mean square starts at :math:`d^{-2\gamma}`, which is 2e-4, 1.5e-5 and 9.5e-7 for
:math:`\gamma=1`; epsilon lies well below, so that the norm does the same at every size. With the
usual 1e-6 or 1e-5 the large model would hardly be normalised at its start.

>>> model = unallocated(paper_700m)
>>> parameter_count(model)["total"]
713818112
>>> round(flops_per_token(model) / 1e9, 2)
3.65
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from staircase_lib.language.transformer import Transformer

__all__ = [
    "flops_per_token",
    "paper_700m",
    "parameter_count",
    "small",
    "tiny",
    "unallocated",
]


def tiny(vocab_size: int, length: int = 128, **settings: Any) -> Transformer:
    """Two blocks of width 64: minutes on a laptop, also several runs at once.

    Parameters
    ----------
    vocab_size, length : int
    **settings
        Any other of :class:`~staircase_lib.language.transformer.Transformer`, to differ from what
        is described here.
    """
    sizes = {"d": 64, "blocks": 2, "heads": 4, "epsilon": 1e-5}
    return _llama(vocab_size, length, **{**sizes, **settings})


def small(vocab_size: int, length: int = 256, **settings: Any) -> Transformer:
    """Six blocks of width 256, 6.3 million parameters beside the vocabulary's: an hour on a laptop.

    Parameters
    ----------
    vocab_size, length, **settings
        As in :func:`tiny`.
    """
    sizes = {"d": 256, "blocks": 6, "heads": 8, "epsilon": 1e-6}
    return _llama(vocab_size, length, **{**sizes, **settings})


def paper_700m(vocab_size: int = 151_936, length: int = 2048, **settings: Any) -> Transformer:
    """The paper's model: 24 blocks of width 1024, 16 heads, hidden width 4096.

    Parameters
    ----------
    vocab_size : int
        Ours: that of Qwen's tokenizer, padded; a vocabulary for English and Chinese, with which the
        number of parameters comes out.
    length : int
        Ours.
    **settings
        As in :func:`tiny`.
    """
    sizes = {"d": 1024, "blocks": 24, "heads": 16, "epsilon": 1e-8}
    return _llama(vocab_size, length, **{**sizes, **settings})


def _llama(vocab_size: int, length: int, **settings: Any) -> Transformer:
    """With the variants that all of them have."""
    variant = {"positions": "rotary", "ffn": "swiglu"}
    return Transformer(vocab_size, length=length, **{**variant, **settings})


def unallocated(make: Callable[..., Transformer], *args: Any, **settings: Any) -> Transformer:
    """The model ``make(*args, **settings)`` without memory for its parameters, to be looked at."""
    with torch.device("meta"):
        return make(*args, **settings)


def parameter_count(model: Transformer) -> dict[str, int]:
    """Number of parameters by kind, of one run.

    Returns
    -------
    dict
        Keys ``"embedding"``, ``"positions"``, ``"unembedding"``, ``"attention"``, ``"ffn"`` and
        ``"total"``. A tied unembedding has none of its own; gains are fixed, so not counted.
    """
    kinds = {"W_E": "embedding", "W_P": "positions", "W_U": "unembedding"}
    counts: dict[str, int] = dict.fromkeys((*kinds.values(), "attention", "ffn"), 0)
    for name, parameter in model.named_parameters():
        last = name.split(".")[-1]
        kind = kinds.get(last, "attention" if last in ("W_Q", "W_K", "W_V", "W_O") else "ffn")
        counts[kind] += parameter.numel() // (model.runs or 1)
    return {**counts, "total": sum(counts.values())}


def flops_per_token(model: Transformer, length: int | None = None) -> float:
    r"""Floating-point operations that training spends on one token of one run.

    .. math:: 6\,(P-P_E-P_P)+6\,L\,d\,B

    Every weight that multiplies (the unembedding does, tied or not; embedding and positions are
    looked up) takes two operations forwards and four backwards. So do the ``L/2`` keys and as many
    values of width ``d`` that a position of a causal model attends to on average, in each of ``B``
    blocks. Norms and activations are left out: they take time, but not multiplications of matrices.

    Parameters
    ----------
    model : Transformer
    length : int, optional
        ``L``; default: the model's.
    """
    counts = parameter_count(model)
    multiplied = counts["attention"] + counts["ffn"] + model.vocab_size * model.d
    length = model.length if length is None else length
    return 6.0 * multiplied + 6.0 * length * model.d * len(model.blocks)
