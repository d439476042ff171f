r"""The paper's two controlled models, with several runs trained as one batch.

Shapes: ``R`` runs (seeds), ``n`` sequences, ``L`` positions, ``V`` vocabulary, ``d`` embedding
width, ``h`` hidden width. Every parameter has a leading axis of runs if ``runs`` is given, and
none otherwise; runs never interact, so a batch of runs is the same as one after the other.

Initialization (section 3.3 of arXiv:2608.30315): every entry of every tensor is normal with
standard deviation :math:`d_{in}^{-\gamma}`, where :math:`d_{in}` is the width of the vector that
the tensor acts on, and the embedding width for tables of embeddings. The paper's theory takes
:math:`\gamma>1`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "Activation",
    "AttentionOnly",
    "EmbeddingFFN",
    "FixedEmbeddingFFN",
    "Model",
    "initialize_",
    "seeded",
]

#: Name of an activation, or coefficients :math:`c_1..c_K` of a polynomial without constant term.
Activation = str | Sequence[float]

_NAMED: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "tanh": torch.tanh,
    "identity": lambda z: z,
}


def _polynomial(coefficients: Sequence[float]) -> Callable[[Tensor], Tensor]:
    def evaluate(z: Tensor) -> Tensor:
        out = torch.zeros_like(z)
        for c in reversed(coefficients):  # Horner, no constant term
            out = (out + c) * z
        return out

    return evaluate


def _activation(activation: Activation) -> Callable[[Tensor], Tensor]:
    if isinstance(activation, str):
        if activation not in _NAMED:
            raise ValueError(
                f"activation: expected one of {sorted(_NAMED)} or polynomial coefficients "
                f"c_1..c_K, got {activation!r}."
            )
        return _NAMED[activation]
    coefficients = [float(c) for c in activation]
    if not coefficients or not all(map(math.isfinite, coefficients)):
        raise ValueError(
            f"activation: expected finite coefficients c_1..c_K of sigma(z) = sum c_k z^k, "
            f"got {list(activation)!r}."
        )
    return _polynomial(coefficients)


def check_sizes(**sizes: int | None) -> None:
    """Refuse a size that is given and no positive integer, by its name."""
    for key, value in sizes.items():
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if value is not None and not (whole and value >= 1):
            raise ValueError(f"{key}: expected a positive integer, got {value!r}.")


def check_tokens(tokens: Tensor, vocab_size: int) -> None:
    """Refuse anything but an integer tensor of shape (n, L) with ids in the vocabulary."""
    if tokens.ndim != 2 or tokens.dtype.is_floating_point or tokens.dtype == torch.bool:
        raise ValueError(
            f"tokens: expected an integer tensor of shape (n, L), got {tokens.dtype} "
            f"of shape {tuple(tokens.shape)}."
        )
    if tokens.numel() and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size):
        raise ValueError(
            f"tokens: expected ids in [0, {vocab_size}), got values from {int(tokens.min())} "
            f"to {int(tokens.max())}."
        )


class Model(Protocol):
    """What initialization and training ask of a model; the Transformer of `language` has it too."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def d(self) -> int: ...
    @property
    def runs(self) -> int | None: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def fan_in(self) -> dict[str, int]: ...
    def __call__(self, tokens: Tensor) -> Tensor: ...


AnyModel = TypeVar("AnyModel", bound=Model)


def _feed_forward(
    embeddings: Tensor,
    W_in: Tensor,
    W_U: Tensor,
    sigma: Callable[[Tensor], Tensor],
    tokens: Tensor,
) -> Tensor:
    """Logits (R, n, V) of the sum of embeddings (R, V, d)."""
    check_tokens(tokens, embeddings.shape[-2])
    # Projected before the gather: V rows are multiplied instead of n, with the same result.
    projected = embeddings @ W_in  # (R, V, h)
    z = projected.index_select(-2, tokens[:, 0])  # (R, n, h)
    for column in tokens.T[1:]:
        z = z + projected.index_select(-2, column)
    return sigma(z) @ W_U


class EmbeddingFFN(nn.Module):
    r"""Feed-forward model :math:`f(X)=U^\top\sigma\big(W^\top\sum_l E_{x_l}\big)` (section 4).

    Parameters
    ----------
    vocab_size, d : int
    hidden : int, optional
        ``h``; default ``d``.
    activation : str or sequence of float
        ``"gelu"``, ``"relu"``, ``"tanh"``, ``"identity"``, or coefficients :math:`c_1..c_K` of
        :math:`\sigma(z)=\sum_k c_k z^k`.
    dtype : torch.dtype
    runs : int, optional
        Number of independent runs; adds a leading axis to parameters and logits.

    Attributes
    ----------
    W_E : Parameter, shape (V, d)
        Input embeddings :math:`E`.
    W_in : Parameter, shape (d, h)
        Hidden weights :math:`W`.
    W_U : Parameter, shape (h, V)
        Unembedding :math:`U`.

    Notes
    -----
    Parameters are zero until :func:`initialize_` is called.
    """

    def __init__(
        self,
        vocab_size: int,
        d: int,
        hidden: int | None = None,
        activation: Activation = "gelu",
        dtype: torch.dtype = torch.float32,
        *,
        runs: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(vocab_size=vocab_size, d=d, hidden=hidden, runs=runs)
        self.vocab_size, self.d, self.hidden, self.runs = vocab_size, d, hidden or d, runs
        self.activation = activation
        self.sigma = _activation(activation)
        lead = () if runs is None else (runs,)
        self.W_E = nn.Parameter(torch.zeros(*lead, vocab_size, d, dtype=dtype))
        self.W_in = nn.Parameter(torch.zeros(*lead, d, self.hidden, dtype=dtype))
        self.W_U = nn.Parameter(torch.zeros(*lead, self.hidden, vocab_size, dtype=dtype))

    def fan_in(self) -> dict[str, int]:
        """Input width :math:`d_{in}` of each parameter."""
        return {"W_E": self.d, "W_in": self.d, "W_U": self.hidden}

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of integer sequences.

        Parameters
        ----------
        tokens : int tensor, shape (n, L)
            Any ``L >= 1``; a single column reads off what one embedding alone says.

        Returns
        -------
        Tensor, shape (n, V), or (R, n, V) with runs
        """
        return _feed_forward(self.W_E, self.W_in, self.W_U, self.sigma, tokens)


class FixedEmbeddingFFN(nn.Module):
    r"""The model of :class:`EmbeddingFFN` on embeddings that stay as given, up to one scale.

    .. math:: f(X)=U^\top\sigma\big(W^\top\sum_l c\,T_{x_l}\big)

    with :math:`c` trained and :math:`T` fixed: the set-up of section 7 of the paper for embeddings
    made from signatures.

    Parameters
    ----------
    table : float array, shape (V, d), or (R, V, d) with runs
        :math:`T`; brought to a root mean square of one, in each run.
    hidden, activation, dtype, runs
        As in :class:`EmbeddingFFN`. A table of shape (V, d) serves every run.

    Attributes
    ----------
    table : buffer, shape (V, d) or (R, V, d)
    scale : Parameter, shape (1, 1)
        :math:`c`; :func:`initialize_` sets it to :math:`d^{-\gamma}`, so that the embeddings start
        as large as drawn ones.
    W_in, W_U : Parameter
        As in :class:`EmbeddingFFN`.

    Raises
    ------
    ValueError
        If the table has another shape, entries that are not finite, or only zeros.
    """

    table: Tensor

    def __init__(
        self,
        table: ArrayLike,
        hidden: int | None = None,
        activation: Activation = "gelu",
        dtype: torch.dtype = torch.float32,
        *,
        runs: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(hidden=hidden, runs=runs)
        fixed = torch.tensor(np.asarray(table, dtype=np.float64))
        shapes = "(V, d)" if runs is None else f"(V, d) or ({runs}, V, d)"
        if fixed.ndim not in ((2,) if runs is None else (2, 3)) or (
            fixed.ndim == 3 and len(fixed) != runs
        ):
            raise ValueError(f"table: expected shape {shapes}, got {tuple(fixed.shape)}.")
        size = fixed.square().mean((-2, -1), keepdim=True).sqrt()
        if not bool((size > 0).all()) or not bool(fixed.isfinite().all()):
            raise ValueError("table: expected finite entries, not all zero.")
        lead = () if runs is None else (runs,)
        self.vocab_size, self.d = fixed.shape[-2:]
        self.hidden, self.runs = hidden or self.d, runs
        self.activation = activation
        self.sigma = _activation(activation)
        self.register_buffer("table", (fixed / size).to(dtype))
        self.scale = nn.Parameter(torch.zeros(*lead, 1, 1, dtype=dtype))
        self.W_in = nn.Parameter(torch.zeros(*lead, self.d, self.hidden, dtype=dtype))
        self.W_U = nn.Parameter(torch.zeros(*lead, self.hidden, self.vocab_size, dtype=dtype))

    def fan_in(self) -> dict[str, int]:
        """Input width :math:`d_{in}` of each parameter that is drawn."""
        return {"W_in": self.d, "W_U": self.hidden}

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, shape (n, V) or (R, n, V), from tokens of shape (n, L)."""
        return _feed_forward(self.scale * self.table, self.W_in, self.W_U, self.sigma, tokens)


class AttentionOnly(nn.Module):
    r"""One causal self-attention layer read at the last position (section 5).

    .. math:: f(X)=U^\top V^\top\sum_l a_l\,h_l,\quad h_l=E_{x_l}+P_l,\quad
              a=\mathrm{softmax}\big(h_L^\top Q K^\top h_l/\sqrt d\big)

    Learned positions; no residual, no normalisation, no feed-forward layer. At the last position
    the causal mask admits every position, so it does not appear.

    Parameters
    ----------
    vocab_size, d, length : int
        ``length`` is the number of learned positions, the longest sequence accepted.
    dtype : torch.dtype
    runs : int, optional
        As in :class:`EmbeddingFFN`.

    Attributes
    ----------
    W_E : Parameter, shape (V, d)
    W_P : Parameter, shape (length, d)
    W_Q, W_K, W_V : Parameter, shape (d, d)
    W_U : Parameter, shape (d, V)
    """

    def __init__(
        self,
        vocab_size: int,
        d: int,
        length: int,
        dtype: torch.dtype = torch.float32,
        *,
        runs: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(vocab_size=vocab_size, d=d, length=length, runs=runs)
        self.vocab_size, self.d, self.length, self.runs = vocab_size, d, length, runs
        lead = () if runs is None else (runs,)
        self.W_E = nn.Parameter(torch.zeros(*lead, vocab_size, d, dtype=dtype))
        self.W_P = nn.Parameter(torch.zeros(*lead, length, d, dtype=dtype))
        self.W_Q = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_K = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_V = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_U = nn.Parameter(torch.zeros(*lead, d, vocab_size, dtype=dtype))

    def fan_in(self) -> dict[str, int]:
        """Input width :math:`d_{in}` of each parameter."""
        return {name: self.d for name, _ in self.named_parameters()}

    def _states(self, tokens: Tensor) -> list[Tensor]:
        """States that a token has at each position of the sequences, L of (R, V, d)."""
        check_tokens(tokens, self.vocab_size)
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"tokens: expected at most {self.length} positions, got {tokens.shape[1]}; "
                f"build the model with a larger length."
            )
        return [self.W_E + self.W_P[..., position, None, :] for position in range(tokens.shape[1])]

    def _attention(self, states: list[Tensor], tokens: Tensor) -> Tensor:
        # Projected before the gather, as in the feed-forward model.
        query = (states[-1] @ self.W_Q).index_select(-2, tokens[:, -1])  # (R, n, d)
        scores = [
            (query * (state @ self.W_K).index_select(-2, column)).sum(-1)
            for state, column in zip(states, tokens.T, strict=True)
        ]
        return torch.softmax(torch.stack(scores, dim=-1) / math.sqrt(self.d), dim=-1)

    def attention(self, tokens: Tensor) -> Tensor:
        """Attention of the last position on every position, shape (n, L) or (R, n, L)."""
        return self._attention(self._states(tokens), tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits at the last position, shape (n, V) or (R, n, V), from tokens of shape (n, L)."""
        states = self._states(tokens)
        attention = self._attention(states, tokens)
        readout = self.W_V @ self.W_U  # (R, d, V)
        logits = torch.zeros((), dtype=readout.dtype, device=readout.device)
        for position, (state, column) in enumerate(zip(states, tokens.T, strict=True)):
            read = (state @ readout).index_select(-2, column)  # (R, n, V)
            logits = logits + attention[..., position, None] * read
        return logits


def seeded(seeds: Iterable[int]) -> list[torch.Generator]:
    """One CPU generator per seed, for :func:`initialize_`."""
    return [torch.Generator().manual_seed(int(seed)) for seed in seeds]


@torch.no_grad()
def initialize_(
    model: AnyModel,
    gamma: float,
    generator: torch.Generator | Sequence[torch.Generator],
) -> AnyModel:
    r"""Fill every parameter with normal entries of standard deviation :math:`d_{in}^{-\gamma}`.

    Parameters
    ----------
    model : EmbeddingFFN, FixedEmbeddingFFN, AttentionOnly or Transformer
    gamma : float
        Initialization rate :math:`\gamma`; larger is smaller. :math:`\gamma=1/2` is the ordinary
        scale, the paper's theory takes :math:`\gamma>1`.
    generator : torch.Generator, or one for each run
        With one for each run (:func:`seeded`) a run starts from the same numbers whichever
        batch it is in.

    Returns
    -------
    The model, for chaining.

    Raises
    ------
    ValueError
        If gamma is not finite or the number of generators is not the number of runs.

    Notes
    -----
    Section 3.3 of the paper. Numbers are drawn in float64 on the generator's device and cast, so
    that models of both precisions start alike.
    """
    if not isinstance(gamma, Real) or not math.isfinite(gamma):
        raise ValueError(
            f"gamma: expected a finite number, for example 1.2, got {gamma!r}; the standard "
            f"deviation is d_in**(-gamma)."
        )
    runs = 1 if model.runs is None else model.runs
    if isinstance(generator, torch.Generator):
        generators = [generator] * runs
    else:
        generators = list(generator)
        if len(generators) != runs:
            raise ValueError(
                f"generator: expected one or one per run ({runs}), got {len(generators)}."
            )
    fan_in = model.fan_in()
    for run, source in enumerate(generators):
        for name, parameter in model.named_parameters():
            target = parameter if model.runs is None else parameter[run]
            if name not in fan_in:  # the scale of fixed embeddings is set, not drawn
                target.fill_(model.d**-gamma)
                continue
            draw = torch.randn(
                target.shape, generator=source, dtype=torch.float64, device=source.device
            )
            target.copy_(draw * fan_in[name] ** -gamma)
    return model
