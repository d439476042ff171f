r"""A pre-norm, decoder-only Transformer (section 6 of arXiv:2608.30315).

With states :math:`h_t=E_{x_t}+P_t`, every block adds twice to the residual stream,

.. math:: u=h+A(N(h)),\qquad h\leftarrow u+F(N(u)),

:math:`A` causal self-attention with several heads; no biases. The logits are :math:`W_U^\top N(h)`,
or :math:`W_U^\top h` without the final norm.

**Variants.** Positions are learned, :math:`P_t`, or rotary: no :math:`P_t`, but queries and keys
turned by angles in proportion to their position (RoFormer, arXiv:2104.09864). The FFN is
:math:`F(x)=W_{out}^\top\sigma(W_{in}^\top x)` with GELU, or SwiGLU (arXiv:2002.05202),
:math:`W_{out}^\top(\mathrm{silu}(W_{gate}^\top x)\odot W_{in}^\top x)`. Tied: :math:`W_U=E^\top`.

**Normalisation.** :math:`N(x)=g\odot x/\sqrt{\tfrac1d\lVert x\rVert^2+\epsilon}`. Under small
initialization :math:`\epsilon` is no detail. States far above :math:`\sqrt\epsilon` lose their
scale in the norm, however small they start; far below, the norm is the linear map
:math:`x/\sqrt\epsilon` and the scale stays. An embedding's mean square starts at
:math:`d^{-2\gamma}`: at :math:`d=1024` that is 9.5e-7 for :math:`\gamma=1`, about the usual 1e-6,
and 6e-8 for :math:`\gamma=1.2`. So :math:`\epsilon` is an argument here, and
:func:`~staircase_lib.language.precision.epsilon_share` says what it does to a start.

Shapes: ``R`` runs, ``n`` sequences, ``L`` positions, ``V`` vocabulary, ``d`` width, ``H`` heads,
``h`` hidden width of the FFN. As in :mod:`staircase_lib.models`, every parameter has a leading
axis of runs if ``runs`` is given.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from staircase_lib.language.block import ROLES, ROTARY_BASE, Block, Record, rms_norm, times
from staircase_lib.language.cross_entropy import TakeResidual, chunked_cross_entropy, take_residual
from staircase_lib.models import check_sizes, check_tokens

__all__ = [
    "ROLES",
    "ROTARY_BASE",
    "Block",
    "Record",
    "Transformer",
    "next_token_loss",
    "next_tokens",
]


class Transformer(nn.Module):
    """Pre-norm decoder-only Transformer; see the module for its formulas.

    Parameters
    ----------
    vocab_size, d, length : int
        ``length`` is the longest sequence accepted, and the number of learned positions.
    blocks, heads : int
        ``heads`` divides ``d``.
    hidden : int, optional
        ``h``; default ``4 * d``.
    positions : {"learned", "rotary"}
    ffn : {"gelu", "swiglu"}
    tied : bool
        Read with the embedding, :math:`W_U=E^\\top`; there is no parameter ``W_U`` then.
    epsilon : float
        Of every norm.
    final_norm : bool
        Normalise the stream before it is read.
    dtype : torch.dtype
    runs : int, optional
        As in :class:`~staircase_lib.models.EmbeddingFFN`.

    Attributes
    ----------
    W_E : Parameter, shape (V, d)
    W_P : Parameter, shape (length, d)
        With learned positions only.
    blocks : ModuleList of :class:`Block`
    W_U : Parameter, shape (d, V)
        None if tied; :attr:`readout` is what reads in either case.
    g_U : buffer, shape (d,)
        Gain of the final norm.
    settings : dict
        What the model was made with, by the names of the parameters here, but for the data type.

    Raises
    ------
    ValueError
        If a size is not positive, the heads do not divide the width, epsilon is not positive or a
        variant is unknown.

    Notes
    -----
    Parameters are zero until :func:`staircase_lib.models.initialize_` fills them. Gains are buffers
    at one: they are neither drawn nor trained. Nothing is lost, since a gain multiplies the rows of
    the weight that reads the normalised state; but for the final one of a tied model, whose weight
    is the embedding.
    """

    g_U: Tensor

    def __init__(
        self,
        vocab_size: int,
        d: int,
        length: int,
        blocks: int = 1,
        heads: int = 1,
        hidden: int | None = None,
        *,
        positions: str = "learned",
        ffn: str = "gelu",
        tied: bool = False,
        epsilon: float = 1e-5,
        final_norm: bool = True,
        dtype: torch.dtype = torch.float32,
        runs: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes(vocab_size=vocab_size, d=d, length=length, blocks=blocks, heads=heads)
        check_sizes(hidden=hidden, runs=runs)
        for name, given, known in (
            ("positions", positions, ("learned", "rotary")),
            ("ffn", ffn, ("gelu", "swiglu")),
        ):
            if given not in known:
                raise ValueError(f"{name}: expected one of {known}, got {given!r}.")
        if d % heads:
            raise ValueError(f"heads: expected a divisor of the width d={d}, got {heads}.")
        if positions == "rotary" and d // heads % 2:
            raise ValueError(
                f"heads: rotary positions turn pairs of entries; expected an even width for each "
                f"head, got d/heads = {d // heads}."
            )
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ValueError(
                f"epsilon: expected a positive number, got {epsilon!r}; it keeps the norm of a "
                f"zero state finite."
            )
        self.vocab_size, self.d, self.length, self.runs = vocab_size, d, length, runs
        self.hidden, self.tied = hidden or 4 * d, tied
        self.epsilon, self.final_norm = epsilon, final_norm
        self.settings: dict[str, int | float | str | bool | None] = {
            "vocab_size": vocab_size,
            "d": d,
            "length": length,
            "blocks": blocks,
            "heads": heads,
            "hidden": self.hidden,
            "positions": positions,
            "ffn": ffn,
            "tied": tied,
            "epsilon": epsilon,
            "final_norm": final_norm,
            "runs": runs,
        }
        lead = () if runs is None else (runs,)
        self.W_E = nn.Parameter(torch.zeros(*lead, vocab_size, d, dtype=dtype))
        self.W_P = self.W_U = None
        if positions == "learned":
            self.W_P = nn.Parameter(torch.zeros(*lead, length, d, dtype=dtype))
        rotary = positions == "rotary"
        self.blocks = nn.ModuleList(
            Block(d, self.hidden, heads, epsilon, dtype, rotary=rotary, ffn=ffn, runs=runs)
            for _ in range(blocks)
        )
        if not tied:
            self.W_U = nn.Parameter(torch.zeros(*lead, d, vocab_size, dtype=dtype))
        self.register_buffer("g_U", torch.ones(*lead, d, dtype=dtype))
        self._residual_of: TakeResidual = take_residual

    def fan_in(self) -> dict[str, int]:
        """Input width :math:`d_{in}` of each parameter."""
        return {
            name: self.hidden if name.endswith("W_out") else self.d
            for name, _ in self.named_parameters()
        }

    @property
    def readout(self) -> Tensor:
        """The weight that reads the stream, shape (R, d, V): ``W_U``, or ``W_E`` turned if tied."""
        return self.W_E.transpose(-1, -2) if self.W_U is None else self.W_U

    def embed(self, tokens: Tensor) -> Tensor:
        """The stream as it starts, :math:`E_{x_t}+P_t`, shape (R, n, L, d)."""
        check_tokens(tokens.flatten(0, -2), self.vocab_size)
        return self._embed(tokens)

    def _embed(self, tokens: Tensor) -> Tensor:
        """The same without a look at the ids, for which a program on a GPU would have to wait."""
        fits = tokens.ndim == 2 or (tokens.ndim == 3 and len(tokens) == self.runs)
        if not fits or tokens.is_floating_point():
            shapes = "(n, L)" if self.runs is None else f"(n, L) or ({self.runs}, n, L)"
            raise ValueError(
                f"tokens: expected integers of shape {shapes}, got {tokens.dtype} of shape "
                f"{tuple(tokens.shape)}."
            )
        length = tokens.shape[-1]
        if length > self.length:
            raise ValueError(
                f"tokens: expected at most {self.length} positions, got {length}; "
                f"build the model with a larger length."
            )
        if self.runs is None:
            stream = functional.embedding(tokens, self.W_E)
        else:
            each = tokens if tokens.ndim == 3 else tokens.expand(self.runs, *tokens.shape)
            rows = [functional.embedding(t, W) for t, W in zip(each, self.W_E, strict=True)]
            stream = torch.stack(rows)
        return stream if self.W_P is None else stream + self.W_P[..., None, :length, :]

    def stream(self, tokens: Tensor, record: Record | None = None) -> Tensor:
        """The residual stream (R, n, L, d) behind the last block, before the final norm.

        Parameters
        ----------
        tokens : int64 Tensor, shape (n, L), or (R, n, L) with each run its own
            Ids in ``0..V-1``; here and in :meth:`loss` this is not checked.
        record : Record, optional
            To keep what attention and the FFN of each block write.
        """
        stream = self._embed(tokens)
        if record is not None:
            record.embedded = stream
        for block in self.blocks:
            stream = block(stream, record)
        return stream

    def _read(self, stream: Tensor) -> Tensor:
        """The stream as the unembedding sees it."""
        return rms_norm(stream, self.g_U, self.epsilon) if self.final_norm else stream

    def unembed(self, stream: Tensor) -> Tensor:
        """Logits (R, n, L, V) read off the stream (R, n, L, d)."""
        return times(self._read(stream), self.readout)

    def written(self, stream: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """What attention and what the FFN of each block add to a stream (R, n, L, d).

        The stream itself plus everything in the two lists is what the logits are read off.
        """
        record = Record()
        for block in self.blocks:
            stream = block(stream, record)
        return record.attention, record.ffn

    def logits(self, tokens: Tensor) -> Tensor:
        """Logits at every position, (n, L, V) or (R, n, L, V), from tokens as in :meth:`stream`."""
        check_tokens(tokens.flatten(0, -2), self.vocab_size)
        return self.unembed(self.stream(tokens))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits at the last position, (n, V) or (R, n, V): the answer to a labelled task."""
        return self.logits(tokens)[..., -1, :]

    def loss(self, tokens: Tensor, *, chunk: int = 512, record: Record | None = None) -> Tensor:
        """Mean cross-entropy of every token given those before it.

        Parameters
        ----------
        tokens : int64 Tensor, shape (n, L + 1) or (R, n, L + 1)
            The last one is predicted only.
        chunk : int
            Positions whose logits exist at a time.
        record : Record, optional
            As in :meth:`stream`.

        Returns
        -------
        Tensor, shape () or (R,)
            In nats, in float32 at least.
        """
        if tokens.shape[-1] < 2:
            raise ValueError(
                f"tokens: expected at least two a sequence, one to predict from and one to "
                f"predict, got {tokens.shape[-1]}."
            )
        states = self._read(self.stream(tokens[..., :-1], record))
        targets = tokens[..., 1:].flatten(-2)
        return chunked_cross_entropy(
            states.flatten(-3, -2), self.readout, targets, chunk, residual_of=self._residual_of
        )

    def compile_parts(self) -> None:
        """Compile every block and the softmax of the loss by themselves, with ``torch.compile``.

        Their kernels are few, and each block of a sharded model is still reached by itself.
        """
        for block in self.blocks:
            block.compile()
        self._residual_of = torch.compile(take_residual)


def next_tokens(tokens: Tensor, labels: Tensor) -> Tensor:
    """What each position predicts: the token after it, and the label at the last; shape (n, L)."""
    return torch.cat([tokens[:, 1:], labels[:, None]], dim=1)


def next_token_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy, mean over positions and weighted mean over sequences.

    Parameters
    ----------
    logits : Tensor, shape (n, L, V) or (R, n, L, V)
    targets : int Tensor, shape (n, L)
    weights : Tensor, shape (n,)
        Summing to one.

    Returns
    -------
    Tensor, shape () or (R,)
    """
    index = targets.expand(logits.shape[:-1]).unsqueeze(-1)
    each = logits.logsumexp(-1) - logits.gather(-1, index).squeeze(-1)
    return each.mean(-1) @ weights
