r"""What a language model shares with the signatures of its corpus, at one checkpoint.

Three measurements, of claims 6.5 to 6.7 of the paper. All compare *similarity structures*: the
cosines of all pairs of vectors of the model against those of vectors that the corpus alone gives.

**Next-token alignment** (6.5). Pearson correlation, over the pairs of :math:`A` tokens, of the
cosines of their embeddings and of their signatures :math:`P(y\mid\alpha)-P(y)`, :math:`y` the
token after :math:`\alpha`. By default the tokens are the most frequent, the mean embedding of these
tokens is taken off first (a common direction says nothing about which are alike), and all pairs
count the same. :data:`SENSITIVITY` varies each of these choices alone.

**Probe** (6.6). Is the similarity of tokens that a probe has not seen predicted by their
signatures? With unit vectors :math:`z_\alpha` along the centred embeddings, an unseen token's is
predicted linearly from its signature, by kernel ridge regression on the seen tokens:
:math:`\hat z_\alpha=\sum_\beta B_{\alpha\beta}z_\beta`, the weights :math:`B` a function of
signatures only. So similarities alone enter, :math:`\hat T=BTB^\top`, in closed form. The kernel is

.. math:: k_\mu=(1-\mu)\,k_0+\mu\,k_1,\qquad
          k_0(\alpha,\beta)=\sum_y\sqrt{S^{(0)}_\alpha(y)S^{(0)}_\beta(y)},\qquad
          k_1(\alpha,\beta)=\sum_{c,y}\sqrt{S^{(1)}_\alpha(y,c)S^{(1)}_\beta(y,c)},

each centred and scaled to the same mean diagonal, :math:`S^{(1)}_\alpha(y,c)` the distribution of
the next token and the previous one. Summed over :math:`c` it is :math:`S^{(0)}`: a probe of the
first order can always fall back on order 0, and :math:`\mu` says how far it does. It is chosen
together with the ridge on the seen tokens, by generalised cross-validation; order 0 is
:math:`\mu=0`. This mixture is what lets the first order be seen at all. On its own, :math:`k_1`
compares tokens by exact pairs of neighbours, of which there are so many that two tokens share few:
it predicts worse than order 0 at every step. Fewer counts' noise does not cure that (shrinking
:math:`S^{(1)}` to the product of its marginals changes nothing), low rank and coarse contexts do in
part; in the mixture they are no longer needed. Roots, that is Bhattacharyya coefficients, predict
better than probabilities, whose few large entries rule.

**Attention path** (6.7). Correlation, over pairs of positions :math:`i` in the text, of the cosines
of what a block's attention writes there and of :math:`\sum_ja_{ij}\,[P(y\mid x_j)-P(y)]`, with
:math:`a` the attention averaged over heads, both centred over the positions. Controls: the present
token's own signature; uniform attention; and each token with another token's signature, which
leaves the similarity of positions that hear the same tokens: random embeddings have that much.

Shapes: ``V`` vocabulary, ``A`` chosen tokens, ``d`` width, ``N`` positions in windows of ``L``
tokens, ``B`` blocks, ``R`` runs. Where a model trains as a batch of runs, a leading axis of runs.
Every function ``..._rows`` returns tidy rows with the same columns: ``measure``, ``signature``,
``variant``, ``run``, ``block``, ``value``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from staircase_lib.alignment import cosine_similarity
from staircase_lib.language.counting import Form, corpus_signature, count_signatures

if TYPE_CHECKING:
    from staircase_lib.language.transformer import Transformer

__all__ = [
    "SENSITIVITY",
    "AttentionReference",
    "CorpusCounts",
    "KernelProbe",
    "Reference",
    "Variant",
    "alignment_rows",
    "attention_reference",
    "attention_rows",
    "count_corpus",
    "kernel_probe",
    "probe_rows",
    "read_attention",
    "references",
    "sample_windows",
    "signature_probes",
]

Side = Literal["next", "previous", "both"]
Row = dict[str, Any]


def _row(
    measure: str, signature: str, variant: str, run: int, block: int | None, value: float
) -> Row:
    return {
        "measure": measure,
        "signature": signature,
        "variant": variant,
        "run": run,
        "block": block,
        "value": float(value),
    }


def _runs(values: ArrayLike, axes: int, what: str) -> NDArray[np.float64]:
    """Values with a leading axis of runs, whether they had one or not."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == axes:
        array = array[None]
    if array.ndim != axes + 1 or 0 in array.shape:
        raise ValueError(
            f"{what}: expected {axes} axes, or {axes + 1} with runs first, got shape "
            f"{np.shape(values)}."
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{what}: expected finite numbers, got some that are not; did it diverge?")
    return array


# --- The corpus ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CorpusCounts:
    """What the measurements need to know of a corpus.

    Attributes
    ----------
    tokens : int64 array, shape (A,)
        The chosen tokens, most frequent first.
    pairs : sparse array, shape (V, V), int64
        Counts of (token, next), all tokens.
    triples : sparse array, shape (A, V, V), int64, or None
        Counts of (token, previous, next) of the chosen tokens.
    """

    tokens: NDArray[np.int64]
    pairs: Any
    triples: Any = None

    @property
    def vocab_size(self) -> int:
        return int(self.pairs.shape[0])

    @cached_property
    def occurrences(self) -> NDArray[np.int64]:
        """How often each token of the vocabulary has a next one, shape (V,)."""
        return np.asarray(self.pairs.sum(axis=1)).ravel()

    @cached_property
    def _probability(self) -> dict[str, Any]:
        """P(beside | token) of all tokens by side, (V, V), and the shares of what is beside."""
        found = {}
        for side, counts in (("next", self.pairs), ("previous", sparse.csr_array(self.pairs.T))):
            share = np.asarray(counts.sum(axis=0)).ravel()
            found[side] = corpus_signature(counts), share / max(share.sum(), 1)
        return found

    def gram(self, form: Form = "centred", side: Side = "next") -> NDArray[np.float64]:
        """Inner products of the chosen tokens' signatures, shape (A, A).

        Parameters
        ----------
        form : {"probability", "centred", "root", "ppmi"}
            As in :func:`staircase_lib.language.counting.corpus_signature`; :math:`P(y)` is that of
            the whole corpus.
        side : {"next", "previous", "both"}
            Token after or before; ``"both"``: the two signatures side by side.
        """
        if side == "both":
            return self.gram(form, "next") + self.gram(form, "previous")
        if form in ("probability", "centred"):
            rows, share = self._probability[side]
            return _gram(rows[self.tokens], share if form == "centred" else None)
        counts = self.pairs if side == "next" else sparse.csr_array(self.pairs.T)
        return _gram(corpus_signature(counts, form)[self.tokens])


def _gram(rows: Any, share: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Inner products of sparse rows, each less its mass times a share, which stays sparse."""
    product = np.asarray((rows @ rows.T).toarray())
    if share is None:
        return product
    along, mass = rows @ share, np.asarray(rows.sum(axis=1)).ravel()
    across = np.outer(along, mass)
    return product - across - across.T + (share @ share) * np.outer(mass, mass)


def _cosine(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines from inner products; a vector of zeros is similar to nothing."""
    square = np.diag(gram)
    small = square <= 1e-14 * max(float(square.max(initial=0.0)), 1e-300)
    inverse = np.where(small, 0.0, 1 / np.sqrt(np.where(small, 1.0, square)))
    return np.clip(gram * inverse[:, None] * inverse, -1.0, 1.0)


def _centred(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inner products after the mean vector is taken off."""
    rows = gram.mean(axis=0)
    return gram - rows - rows[:, None] + rows.mean()


def count_corpus(
    ids: NDArray[np.integer],
    vocab_size: int,
    number: int = 300,
    *,
    tokens: ArrayLike | None = None,
    exclude: Sequence[int] = (),
    separator: int | None = None,
    triples: bool = True,
    **counting: Any,
) -> CorpusCounts:
    """Count a corpus once, for the measurements at all checkpoints.

    Parameters
    ----------
    ids : integer array or memory map, shape (n,)
    vocab_size : int
        The model's, which may be larger than the tokenizer's.
    number : int
        ``A``: the most frequent tokens are chosen.
    tokens : array of int, optional
        Choose these instead; they are put in order of frequency.
    exclude : sequence of int
        Tokens that are not chosen by frequency, such as that of unknown words.
    separator : int, optional
        Between documents; never chosen.
    triples : bool
        Count order 1 too, which only the probe needs.
    **counting
        ``workers``, ``memory``, ``progress`` of
        :func:`staircase_lib.language.counting.count_signatures`.

    Raises
    ------
    ValueError
        If fewer than three of the tokens occur, or one that is asked for does not; and as
        ``count_signatures``.
    """
    pairs = count_signatures(ids, vocab_size, 0, separator=separator, **counting)
    often = np.asarray(pairs.sum(axis=1)).ravel()
    if tokens is None:
        often[list(exclude)] = 0
        chosen = np.argsort(-often, kind="stable")[: max(number, 0)]
        chosen = chosen[often[chosen] > 0]
    else:
        chosen = np.asarray(tokens, dtype=np.int64)
        outside = chosen[(chosen < 0) | (chosen >= vocab_size)]
        absent = outside if outside.size else chosen[often[chosen] == 0]
        if absent.size:
            raise ValueError(
                f"tokens: expected tokens that occur in the corpus, got {absent[:5].tolist()}; "
                f"leave them out or count more text."
            )
        chosen = chosen[np.argsort(-often[chosen], kind="stable")]
    if len(chosen) < 3:
        raise ValueError(
            f"tokens: expected three or more that occur, to have pairs to compare, got "
            f"{len(chosen)} in {len(ids)} ids."
        )
    found = None
    if triples:
        found = count_signatures(ids, vocab_size, 1, tokens=chosen, separator=separator, **counting)
    return CorpusCounts(chosen.astype(np.int64), pairs, found)


# --- Next-token alignment ------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A way to measure the next-token alignment; the defaults are the definition used.

    Attributes
    ----------
    rows : {"centred", "raw"}
        Embeddings less their mean over the tokens, or as they are.
    form : {"centred", "probability", "root", "ppmi"}
        Of the signature.
    side : {"next", "previous", "both"}
    weights : {"pairs", "frequency"}
        Every pair of tokens counts the same, or as often as both its tokens occur.
    number : int, optional
        Only the most frequent so many of the chosen tokens.
    """

    rows: Literal["centred", "raw"] = "centred"
    form: Form = "centred"
    side: Side = "next"
    weights: Literal["pairs", "frequency"] = "pairs"
    number: int | None = None

    @property
    def name(self) -> str:
        """What differs from the definition."""
        told = {
            "rows": "rows not centred",
            "form": f"signature: {self.form}",
            "side": f"{self.side} token" + ("s" if self.side == "both" else ""),
            "weights": "weighted by frequency",
            "number": f"{self.number} tokens",
        }
        differ = [told[field] for field in told if getattr(self, field) != getattr(BASE, field)]
        return ", ".join(differ) or "as defined"


BASE = Variant()

#: The definition, and each of its choices varied alone.
SENSITIVITY = (
    BASE,
    Variant(rows="raw"),
    Variant(form="probability"),
    Variant(form="root"),
    Variant(form="ppmi"),
    Variant(side="previous"),
    Variant(side="both"),
    Variant(weights="frequency"),
    Variant(number=100),
)


@dataclass(frozen=True)
class Reference:
    """Signature similarities of one variant, ready to be correlated with embeddings'.

    Attributes
    ----------
    variant : Variant
    tokens : int
        How many of the chosen tokens it takes.
    similarity : float64 array, shape (pairs,)
        Cosines of the pairs ``i < j``.
    weights : float64 array, shape (pairs,)
        Summing to one.
    """

    variant: Variant
    tokens: int
    similarity: NDArray[np.float64]
    weights: NDArray[np.float64]


def references(
    counts: CorpusCounts, variants: Sequence[Variant] = SENSITIVITY
) -> tuple[Reference, ...]:
    """The corpus' side of the alignment, computed once for all checkpoints.

    Variants with more tokens than there are chosen are left out.
    """
    found, grams = [], {}
    for variant in variants:
        key = (variant.form, variant.side)
        if key not in grams:
            grams[key] = counts.gram(*key)
        n = variant.number or len(counts.tokens)
        if not 3 <= n <= len(counts.tokens):
            continue
        pairs = np.triu_indices(n, 1)
        weights = np.ones(len(pairs[0]))
        if variant.weights == "frequency":
            often = counts.occurrences[counts.tokens].astype(np.float64)
            weights = often[pairs[0]] * often[pairs[1]]
        similarity = _cosine(grams[key][:n, :n])[pairs]
        found.append(Reference(variant, n, similarity, weights / weights.sum()))
    return tuple(found)


def _correlation(
    x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]
) -> float:
    """Weighted Pearson correlation; nan where a side is constant to rounding."""
    x, y = x - weights @ x, y - weights @ y
    spread_x, spread_y = np.sqrt(weights @ x**2), np.sqrt(weights @ y**2)
    if not (spread_x > 1e-9 and spread_y > 1e-9):
        return float("nan")
    return float(np.clip((weights * x) @ y / (spread_x * spread_y), -1.0, 1.0))


def alignment_rows(embeddings: ArrayLike, references: Sequence[Reference]) -> list[Row]:
    """Next-token alignment at a checkpoint, in every variant (claim 6.5).

    Parameters
    ----------
    embeddings : float array, shape (A, d) or (R, A, d)
        Rows of the chosen tokens, in the order of ``CorpusCounts.tokens``.
    references : sequence of Reference
        From :func:`references`.

    Returns
    -------
    list of dict
        ``measure`` is ``"alignment"``, ``signature`` for instance ``"next, centred"``, ``variant``
        what differs from the definition; ``value`` is nan where all pairs are equally similar.
    """
    rows = []
    for run, E in enumerate(_runs(embeddings, 2, "embeddings")):
        for reference in references:
            variant = reference.variant
            if reference.tokens > len(E):
                raise ValueError(
                    f"embeddings: expected the rows of the {reference.tokens} chosen tokens, got "
                    f"{len(E)}."
                )
            x = E[: reference.tokens]
            x = x - x.mean(axis=0) if variant.rows == "centred" else x
            similarity = cosine_similarity(x)[np.triu_indices(len(x), 1)]
            value = _correlation(similarity, reference.similarity, reference.weights)
            signature = f"{variant.side}, {variant.form}"
            rows.append(_row("alignment", signature, variant.name, run, None, value))
    return rows


# --- First-order probe ---------------------------------------------------------------------------

_SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)  # of the first-order kernel
_RIDGES = 10.0 ** np.arange(-4, 2.01, 0.5)


@dataclass(frozen=True)
class _Fold:
    """One division into seen and unseen tokens, for every mixture of kernels.

    ``values (K, n)`` and ``vectors (K, n, n)`` belong to the centred kernels of the seen tokens,
    ``cross (K, m, n)`` are the unseen tokens' kernels in that basis.
    """

    seen: NDArray[np.int64]
    unseen: NDArray[np.int64]
    values: NDArray[np.float64]
    vectors: NDArray[np.float64]
    cross: NDArray[np.float64]


@dataclass(frozen=True)
class KernelProbe:
    """A probe of one kind of signature, ready for the similarities of any checkpoint.

    Attributes
    ----------
    shares : tuple of float
        Share of the second kernel in each mixture; (0.0,) if there is one kernel only.
    """

    shares: tuple[float, ...]
    _folds: tuple[_Fold, ...]

    def held_out(self, similarity: ArrayLike) -> dict[str, float]:
        r"""Errors on tokens that the probe has not seen.

        Parameters
        ----------
        similarity : float array, shape (A, A)
            Cosines of centred embeddings, ones on the diagonal.

        Returns
        -------
        dict
            ``mse``: mean squared error over the pairs of unseen tokens, all folds together, and
            ``correlation`` of prediction and truth there; ``mse with seen``: over the pairs of an
            unseen and a seen token; ``mean mse``: error over unseen pairs of predicting the mean
            similarity of the seen ones; ``share``: mean over the folds of the chosen share of the
            second kernel.
        """
        T = np.asarray(similarity, dtype=np.float64)
        expected = len(self._folds[0].seen) + len(self._folds[0].unseen)
        if T.shape != (expected, expected):
            raise ValueError(
                f"similarity: expected shape {(expected, expected)}, one row a chosen token, got "
                f"{T.shape}."
            )
        truth, guess, mean, half, shares = [], [], [], [], []
        for fold in self._folds:
            seen = T[np.ix_(fold.seen, fold.seen)]
            best, B = _fitted(fold, seen)
            shares.append(self.shares[best])
            pairs = np.triu_indices(len(fold.unseen), 1)
            truth.append(T[np.ix_(fold.unseen, fold.unseen)][pairs])
            guess.append((B @ seen @ B.T)[pairs])
            known = seen[np.triu_indices(len(seen), 1)].mean()
            mean.append(np.full(len(pairs[0]), known))
            half.append((B @ seen - T[np.ix_(fold.unseen, fold.seen)]).ravel())
        t, g = np.concatenate(truth), np.concatenate(guess)
        return {
            "mse": float(((g - t) ** 2).mean()),
            "correlation": _correlation(g, t, np.full(len(t), 1 / len(t))),
            "mse with seen": float((np.concatenate(half) ** 2).mean()),
            "mean mse": float(((np.concatenate(mean) - t) ** 2).mean()),
            "share": float(np.mean(shares)),
        }


def _fitted(fold: _Fold, seen: NDArray[np.float64]) -> tuple[int, NDArray[np.float64]]:
    """Mixture and weights (m, n) chosen by generalised cross-validation on the seen tokens."""
    n = len(seen)
    # Squared length of the targets along each eigenvector; the constant one has none.
    along = ((_centred(seen) @ fold.vectors) * fold.vectors).sum(axis=-2)  # (K, n)
    shrink = _RIDGES / (fold.values[..., None] + _RIDGES)  # (K, n, ridges)
    freedom = n - 1 - (1 - shrink).sum(axis=-2)
    score = (shrink**2 * along[..., None]).sum(axis=-2) / np.maximum(freedom, 1e-9) ** 2
    k, r = np.unravel_index(np.argmin(score), score.shape)
    solved = fold.cross[k] / (fold.values[k] + _RIDGES[r]) @ fold.vectors[k].T
    return int(k), 1 / n + solved


def kernel_probe(
    kernels: Sequence[ArrayLike],
    *,
    shares: Sequence[float] = _SHARES,
    folds: int = 5,
    seed: int = 0,
) -> KernelProbe:
    """A probe from inner products of one or two kinds of features.

    Parameters
    ----------
    kernels : one or two float arrays, shape (A, A)
        Inner products of the features; they are centred and scaled to mean diagonal one.
    shares : sequence of float
        Shares of the second kernel to choose from.
    folds : int
        Over tokens.
    seed : int
        Of the division into folds, the same for all probes with the same number of tokens.

    Raises
    ------
    ValueError
        If there are fewer than four tokens a fold or the shapes disagree.
    """
    A = len(np.asarray(kernels[0]))
    if any(np.shape(k) != (A, A) for k in kernels) or not 1 <= len(kernels) <= 2:
        raise ValueError(
            f"kernels: expected one or two of the same square shape, got "
            f"{[np.shape(k) for k in kernels]}."
        )
    if not 2 <= folds <= A // 4:
        raise ValueError(
            f"folds: expected between 2 and a quarter of the {A} tokens, got {folds}; choose more "
            f"tokens."
        )
    scaled = []
    for kernel in kernels:
        centred = _centred(np.asarray(kernel, dtype=np.float64))
        scaled.append(centred / max(np.trace(centred) / A, 1e-300))
    shares = (0.0,) if len(scaled) == 1 else tuple(shares)
    order = np.random.default_rng(seed).permutation(A)
    divided = []
    for unseen in np.array_split(order, folds):
        seen = np.setdiff1d(order, unseen)
        values, vectors, cross = [], [], []
        for share in shares:
            kernel = scaled[0] if len(scaled) == 1 else (1 - share) * scaled[0] + share * scaled[1]
            inner = kernel[np.ix_(seen, seen)]
            means = inner.mean(axis=0)
            w, Q = np.linalg.eigh(_centred(inner))
            outer = kernel[np.ix_(unseen, seen)] - means
            outer = outer - outer.mean(axis=1, keepdims=True)
            values.append(np.maximum(w, 0.0))
            vectors.append(Q)
            cross.append(outer @ Q)
        divided.append(_Fold(seen, unseen, np.array(values), np.array(vectors), np.array(cross)))
    return KernelProbe(shares, tuple(divided))


def _class_of(counts: CorpusCounts, contexts: int | None) -> NDArray[np.int64]:
    """Class of each token of the vocabulary as a context: the most frequent alone, the rest one."""
    if contexts is None:
        return np.arange(counts.vocab_size)
    frequent = np.argsort(-counts.occurrences, kind="stable")[:contexts]
    classes = np.full(counts.vocab_size, contexts, dtype=np.int64)
    classes[frequent] = np.arange(len(frequent))
    return classes


def _first_order(counts: CorpusCounts, contexts: int | None) -> tuple[NDArray, NDArray]:
    """Bhattacharyya coefficients (A, A) of the first-order signatures, and of the products of
    their marginals, in which next and previous token are independent."""
    A, V = len(counts.tokens), counts.vocab_size
    token, before, after = (axis.astype(np.int64) for axis in counts.triples.coords)
    number = np.asarray(counts.triples.data, dtype=np.float64)
    classes = _class_of(counts, contexts)[before]
    total = np.maximum(np.bincount(token, number, A), 1.0)

    def coefficients(features: NDArray[np.int64]) -> NDArray[np.float64]:
        found, columns = np.unique(features, return_inverse=True)
        entries = (number / total[token], (token, columns))
        table: Any = sparse.csr_array(sparse.coo_array(entries, shape=(A, len(found))))
        table.data = np.sqrt(table.data)  # the conversion has added up what fell together
        return np.asarray((table @ table.T).toarray())

    return coefficients(classes * V + after), coefficients(after) * coefficients(classes)


def signature_probes(
    counts: CorpusCounts, *, contexts: int | None = None, folds: int = 5, seed: int = 0
) -> dict[str, KernelProbe]:
    """Probes of the signatures of a corpus and their controls, made once for all checkpoints.

    Parameters
    ----------
    counts : CorpusCounts
        With triples.
    contexts : int, optional
        Previous tokens that are told apart, the most frequent ones; all others are one context.
        Default: all are told apart.
    folds, seed : int
        As in :func:`kernel_probe`.

    Returns
    -------
    dict of str to KernelProbe
        ``"order 0"``; ``"order 1"``; ``"order 1, independent"``, from :math:`S^{(0)}` and the
        previous token's distribution as if they were independent; ``"order 1, other contexts"``,
        order 0 and another token's first order; ``"order 1, shuffled"``, both of another token.
    """
    if counts.triples is None:
        raise ValueError("counts: expected triples, for order 1; count_corpus(…, triples=True).")
    zero = counts.gram("root")
    joint, independent = _first_order(counts, contexts)
    shuffled = np.random.default_rng([seed, 1]).permutation(len(zero))
    other = np.ix_(shuffled, shuffled)
    kinds = {
        "order 0": [zero],
        "order 1": [zero, joint],
        "order 1, independent": [zero, independent],
        "order 1, other contexts": [zero, joint[other]],
        "order 1, shuffled": [zero[other], joint[other]],
    }
    return {name: kernel_probe(kernels, folds=folds, seed=seed) for name, kernels in kinds.items()}


def probe_rows(embeddings: ArrayLike, probes: dict[str, KernelProbe]) -> list[Row]:
    """Held-out errors of the probes at a checkpoint (claim 6.6).

    Parameters
    ----------
    embeddings : float array, shape (A, d) or (R, A, d)
        Rows of the chosen tokens.
    probes : dict of str to KernelProbe
        From :func:`signature_probes`.

    Returns
    -------
    list of dict
        ``measure`` is ``"probe mse"``, ``"probe mse with seen"``, ``"probe correlation"`` or
        ``"probe share"`` (of order 1 in the kernel), ``signature`` the probe's name. The error of
        the mean has ``signature`` ``"mean"``.
    """
    rows = []
    for run, E in enumerate(_runs(embeddings, 2, "embeddings")):
        similarity = cosine_similarity(E - E.mean(axis=0))
        mean = float("nan")
        for name, probe in probes.items():
            found = probe.held_out(similarity)
            mean = found.pop("mean mse")
            rows += [
                _row(f"probe {what}", name, "as defined", run, None, value)
                for what, value in found.items()
                if what != "share" or len(probe.shares) > 1
            ]
        rows.append(_row("probe mse", "mean", "as defined", run, None, mean))
    return rows


# --- Attention path ------------------------------------------------------------------------------


def sample_windows(
    ids: NDArray[np.integer], length: int, number: int = 300, *, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random windows of a corpus and one position to look at in each.

    Parameters
    ----------
    ids : integer array or memory map, shape (n,)
    length : int
        ``L``.
    number : int
        ``N``.
    seed : int

    Returns
    -------
    tokens : int64 array, shape (N, L)
    positions : int64 array, shape (N,)
        From the second quarter of the window on, where attention has something to choose from.

    Raises
    ------
    ValueError
        If the corpus is shorter than a window or there are fewer than three positions.
    """
    if length < 2 or len(ids) < length or number < 3:
        raise ValueError(
            f"length, number: expected a window of 2 tokens or more within the {len(ids)} of the "
            f"corpus, and 3 positions or more; got {length} and {number}."
        )
    random = np.random.default_rng(seed)
    starts = random.integers(0, len(ids) - length + 1, number)
    tokens = np.stack([np.asarray(ids[start : start + length], np.int64) for start in starts])
    return tokens, random.integers(max(1, length // 4), length, number)


def read_attention(
    model: Transformer, tokens: ArrayLike, positions: ArrayLike
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What attention writes and where it looks, at one position of each window.

    Parameters
    ----------
    model : Transformer
    tokens : int array, shape (N, L)
    positions : int array, shape (N,)

    Returns
    -------
    written : float32 array, shape (B, N, d) or (R, B, N, d)
    attention : float32 array, shape (B, N, L) or (R, B, N, L)
        Averaged over heads.
    """
    import torch

    from staircase_lib.language.transformer import Record

    device = model.W_E.device
    where = torch.as_tensor(np.asarray(positions), device=device)
    rows = torch.arange(len(where), device=device)
    written, attention = [], []
    with torch.no_grad():
        stream = model.embed(torch.as_tensor(np.asarray(tokens), device=device))
        for block in model.blocks:  # one record a block: attention of all would be large
            record = Record(with_weights=True)
            stream = block(stream, record)
            written.append(record.attention[0][..., rows, where, :].float().cpu())
            heads = record.weights[0].float().mean(dim=-3)
            attention.append(heads[..., rows, where, :].cpu())
    axis = 0 if model.runs is None else 1
    return torch.stack(written, axis).numpy(), torch.stack(attention, axis).numpy()


@dataclass(frozen=True)
class AttentionReference:
    """The corpus' side of the attention measurement.

    Attributes
    ----------
    tokens : int64 array, shape (N, L)
    positions : int64 array, shape (N,)
    signature : sparse array, shape (D, V)
        :math:`P(y\\mid x)` of the distinct tokens of the windows; zeros where there are no counts.
    share : float64 array, shape (V,)
        :math:`P(y)`.
    index : int64 array, shape (N, L)
        Row of `signature` of each token.
    shuffled : int64 array, shape (D,)
        Another row for each.
    fixed : dict of str to float64 array, shape (pairs,)
        Similarities of the controls that do not depend on the model.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    signature: Any
    share: NDArray[np.float64]
    index: NDArray[np.int64]
    shuffled: NDArray[np.int64]
    fixed: dict[str, NDArray[np.float64]]

    def similarity(self, attention: ArrayLike, *, shuffled: bool = False) -> NDArray[np.float64]:
        """Cosines, over the pairs of positions, of the attention-weighted signatures.

        Parameters
        ----------
        attention : float array, shape (N, L)
        shuffled : bool
            Each token with another token's signature.
        """
        index = self.shuffled[self.index] if shuffled else self.index
        N, L = index.shape
        where = (np.repeat(np.arange(N), L), index.ravel())
        weights: Any = sparse.coo_array(
            (np.asarray(attention, np.float32).ravel(), where), shape=(N, self.signature.shape[0])
        )
        heard = (weights.tocsr() @ self.signature).toarray()
        product = (heard @ heard.T).astype(np.float64)
        along, mass = heard @ self.share, heard.sum(axis=1)
        across = np.outer(along, mass)
        gram = product - across - across.T + (self.share @ self.share) * np.outer(mass, mass)
        return _cosine(_centred(gram))[np.triu_indices(N, 1)]


def attention_reference(
    counts: CorpusCounts, tokens: ArrayLike, positions: ArrayLike, *, seed: int = 0
) -> AttentionReference:
    """Signatures of the tokens in some windows, made once for all checkpoints.

    Parameters
    ----------
    counts : CorpusCounts
    tokens : int array, shape (N, L)
    positions : int array, shape (N,)
        From :func:`sample_windows`.
    seed : int
        Of the shuffled control.

    Raises
    ------
    ValueError
        If a token is outside the vocabulary or a position outside its window.
    """
    x, at = np.asarray(tokens, dtype=np.int64), np.asarray(positions, dtype=np.int64)
    if x.ndim != 2 or at.shape != x.shape[:1] or len(x) < 3:
        raise ValueError(
            f"tokens, positions: expected shapes (N, L) and (N,), N at least 3, got {x.shape} and "
            f"{at.shape}."
        )
    if x.min() < 0 or x.max() >= counts.vocab_size or at.min() < 0 or at.max() >= x.shape[1]:
        raise ValueError(
            f"tokens, positions: expected ids in [0, {counts.vocab_size}) and positions in "
            f"[0, {x.shape[1]}); the windows are of another vocabulary?"
        )
    distinct, index = np.unique(x, return_inverse=True)
    rows, share = counts._probability["next"]
    made = AttentionReference(
        x,
        at,
        sparse.csr_array(rows[distinct], dtype=np.float32),
        share.astype(np.float32),
        index.reshape(x.shape),
        np.random.default_rng(seed).permutation(len(distinct)),
        {},
    )
    here = np.zeros(x.shape)
    here[np.arange(len(at)), at] = 1.0
    uniform = np.arange(x.shape[1]) <= at[:, None]
    made.fixed["present token"] = made.similarity(here)
    made.fixed["uniform attention"] = made.similarity(uniform / (at[:, None] + 1))
    return made


def attention_rows(
    written: ArrayLike, attention: ArrayLike, reference: AttentionReference
) -> list[Row]:
    """Attention paths against attention-weighted signatures at a checkpoint (claim 6.7).

    Parameters
    ----------
    written : float array, shape (B, N, d) or (R, B, N, d)
        What each block's attention writes at the positions.
    attention : float array, shape (B, N, L) or (R, B, N, L)
        Its weights there, averaged over heads.
    reference : AttentionReference

    Returns
    -------
    list of dict
        ``measure`` is ``"attention path"``; ``signature`` is ``"attention-weighted"``, or the
        control: ``"present token"``, ``"uniform attention"``, ``"shuffled tokens"``.
    """
    paths = _runs(written, 3, "written")
    weights = _runs(attention, 3, "attention")
    N, L = reference.tokens.shape
    if paths.shape[:3] != weights.shape[:3] or weights.shape[2:] != (N, L):
        raise ValueError(
            f"written, attention: expected shapes ([R,] B, {N}, d) and ([R,] B, {N}, {L}), got "
            f"{np.shape(written)} and {np.shape(attention)}."
        )
    pairs = np.triu_indices(N, 1)
    equal = np.full(len(pairs[0]), 1 / len(pairs[0]))
    rows = []
    for run in range(len(paths)):
        for block in range(paths.shape[1]):
            x = paths[run, block]
            seen = cosine_similarity(x - x.mean(axis=0))[pairs]
            a = weights[run, block]
            against = {
                "attention-weighted": reference.similarity(a),
                **reference.fixed,
                "shuffled tokens": reference.similarity(a, shuffled=True),
            }
            rows += [
                _row(
                    "attention path",
                    name,
                    "as defined",
                    run,
                    block,
                    _correlation(seen, similarity, equal),
                )
                for name, similarity in against.items()
            ]
    return rows
