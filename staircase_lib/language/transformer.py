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
:func:`~staircase_lib.language.precision.norm_share` says what it does to a start.

Shapes: ``R`` runs, ``n`` sequences, ``L`` positions, ``V`` vocabulary, ``d`` width, ``H`` heads,
``h`` hidden width of the FFN. As in :mod:`staircase_lib.models`, every parameter has a leading
axis of runs if ``runs`` is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from staircase_lib.language.cross_entropy import chunked_cross_entropy
from staircase_lib.models import check_sizes, check_tokens

__all__ = [
    "ROLES",
    "Block",
    "Record",
    "Transformer",
    "next_token_loss",
    "next_tokens",
]

#: The roles in which attention takes a state: what is read, what is asked, who asks.
ROLES = ("value", "key", "query")
#: Slowest of the rotary angles: one turn in about six times as many positions.
ROTARY_BASE = 10_000.0


@dataclass
class Record:
    """What one forward pass through a Transformer has written, in the order of its blocks.

    Attributes
    ----------
    with_weights : bool
        Keep the attention weights too. They are then computed one by one, which is slower and
        takes memory of the order of ``n*H*L*L``.
    embedded : Tensor, shape (R, n, L, d)
        The stream as it starts.
    attention, ffn : list of Tensor, shape (R, n, L, d)
        With `embedded`, they sum to the stream that is read.
    weights : list of Tensor, shape (R, n, H, L, L)
    """

    with_weights: bool = False
    embedded: Tensor | None = None
    attention: list[Tensor] = field(default_factory=list)
    ffn: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)


def rms_norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square normalisation of the last axis; x (R, n, L, d), gain (R, d)."""
    gain = gain.to(x.dtype)  # a stream in bfloat16 stays in it
    if gain.ndim == 1:
        return functional.rms_norm(x, x.shape[-1:], gain, epsilon)
    return functional.rms_norm(x, x.shape[-1:], eps=epsilon) * gain[..., None, None, :]


def times(x: Tensor, weight: Tensor) -> Tensor:
    """States (R, n, L, d) times a weight (R, d, k), as one large product a run."""
    if weight.ndim == 2:
        return x @ weight
    return (x.flatten(-3, -2) @ weight).unflatten(-2, x.shape[-3:-1])


def rotate(x: Tensor, first: int = 0) -> Tensor:
    """Queries or keys (..., L, d/H), turned by their positions, which begin at ``first``.

    Entry ``i`` and entry ``i + d/2H`` are a plane, turned by the position times
    ``ROTARY_BASE**(-2iH/d)``: scores then depend on the distance of two positions only.
    """
    half = x.shape[-1] // 2
    angles = torch.arange(half, device=x.device, dtype=torch.float64) / -half
    turns = torch.arange(first, first + x.shape[-2], device=x.device, dtype=torch.float64)
    angles = turns[:, None] * ROTARY_BASE**angles
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)


class Block(nn.Module):
    """One block: what attention and what the FFN write to the residual stream.

    Parameters
    ----------
    d, hidden, heads : int
    epsilon : float
    dtype : torch.dtype
    rotary : bool
        Turn queries and keys by their positions.
    ffn : {"gelu", "swiglu"}
    runs : int, optional

    Attributes
    ----------
    W_Q, W_K, W_V, W_O : Parameter, shape (d, d)
        Head ``i`` has the columns ``i*d/H .. (i+1)*d/H`` of the first three, and those rows of
        ``W_O``.
    W_in : Parameter, shape (d, h)
    W_gate : Parameter, shape (d, h)
        With SwiGLU only.
    W_out : Parameter, shape (h, d)
    g_A, g_F : buffer, shape (d,)
        Gains of the norms before attention and before the FFN.
    """

    g_A: Tensor
    g_F: Tensor

    def __init__(
        self,
        d: int,
        hidden: int,
        heads: int,
        epsilon: float,
        dtype: torch.dtype = torch.float32,
        *,
        rotary: bool = False,
        ffn: str = "gelu",
        runs: int | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.epsilon, self.rotary, self.ffn = heads, epsilon, rotary, ffn
        lead = () if runs is None else (runs,)
        self.W_Q = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_K = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_V = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_O = nn.Parameter(torch.zeros(*lead, d, d, dtype=dtype))
        self.W_in = nn.Parameter(torch.zeros(*lead, d, hidden, dtype=dtype))
        if ffn == "swiglu":
            self.W_gate = nn.Parameter(torch.zeros(*lead, d, hidden, dtype=dtype))
        self.W_out = nn.Parameter(torch.zeros(*lead, hidden, d, dtype=dtype))
        self.register_buffer("g_A", torch.ones(*lead, d, dtype=dtype))
        self.register_buffer("g_F", torch.ones(*lead, d, dtype=dtype))

    def forward(self, stream: Tensor, record: Record | None = None) -> Tensor:
        """The stream (R, n, L, d) with what this block adds; a record keeps that apart too."""
        weights = None
        if record is not None and record.with_weights:
            weights = self.attention(stream)
            record.weights.append(weights)
        attention = self.attend(stream, weights=weights)
        stream = stream + attention
        ffn = self.feed(stream)
        if record is not None:
            record.attention.append(attention)
            record.ffn.append(ffn)
        return stream + ffn

    def _by_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """States (R, n, L, d) times a weight, as (R, n, H, L, d/H)."""
        return times(x, weight).unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def attend(
        self,
        stream: Tensor,
        *,
        only: str | None = None,
        last: bool = False,
        weights: Tensor | None = None,
    ) -> Tensor:
        """What attention writes, given the stream (R, n, L, d).

        Parameters
        ----------
        stream : Tensor, shape (R, n, L, d)
        only : {"value", "key", "query"}, optional
            The output is the same, but gradients pass through the stream in this role only. By
            the product rule those of the three roles add up to the whole gradient.
        last : bool
            At the last position only.
        weights : Tensor, shape (R, n, H, L, L), optional
            Attention that :meth:`attention` has computed already.

        Returns
        -------
        Tensor, shape (R, n, L, d), or (R, n, 1, d)
        """
        if only is not None and only not in ROLES:
            raise ValueError(f"only: expected one of {ROLES}, got {only!r}.")
        x = rms_norm(stream, self.g_A, self.epsilon)
        if only is None and not last and weights is None:
            mixed = self._mixed(x)
        else:
            kept = x.detach() if only else x
            read, asked, asking = (x if only == role else kept for role in ROLES)
            if weights is None:
                weights = self._attention(asking[..., -1:, :] if last else asking, asked)
            mixed = weights @ self._by_head(read, self.W_V)
        return times(mixed.transpose(-3, -2).flatten(-2), self.W_O)

    def _mixed(self, x: Tensor) -> Tensor:
        """What every head hears (R, n, H, L, d/H), by torch's kernel that never holds weights."""
        query, key, value = (self._by_head(x, W) for W in (self.W_Q, self.W_K, self.W_V))
        if self.rotary:
            query, key = rotate(query), rotate(key)
        lead = query.shape[:-3]
        query, key, value = (part.flatten(0, -4) for part in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.unflatten(0, lead)

    def _attention(self, asking: Tensor, asked: Tensor) -> Tensor:
        """Attention (R, n, H, l, L) of the last l positions, given normalised states."""
        query, key = self._by_head(asking, self.W_Q), self._by_head(asked, self.W_K)
        rows, columns = query.shape[-2], key.shape[-2]
        if self.rotary:
            query, key = rotate(query, columns - rows), rotate(key)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        later = torch.ones(rows, columns, dtype=torch.bool, device=scores.device)
        return torch.softmax(scores.masked_fill(later.triu(1 + columns - rows), -math.inf), dim=-1)

    def attention(self, stream: Tensor) -> Tensor:
        """Attention (R, n, H, L, L) of each position (rows) on each, given the stream."""
        x = rms_norm(stream, self.g_A, self.epsilon)
        return self._attention(x, x)

    def feed(self, stream: Tensor) -> Tensor:
        """What the FFN writes, shape (R, n, L, d), given the stream of that shape."""
        x = rms_norm(stream, self.g_F, self.epsilon)
        if self.ffn == "swiglu":
            z = functional.silu(times(x, self.W_gate)) * times(x, self.W_in)
        else:
            z = functional.gelu(times(x, self.W_in))
        return times(z, self.W_out)


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

    def loss(self, tokens: Tensor, *, chunk: int = 1024, record: Record | None = None) -> Tensor:
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
        return chunked_cross_entropy(states.flatten(-3, -2), self.readout, targets, chunk)


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
