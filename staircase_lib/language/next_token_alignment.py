r"""How closely embeddings of a language model follow the next-token signature (claim 6.5).

Pearson correlation, over the pairs of :math:`A` tokens, of the cosines of their embeddings and of
their signatures :math:`P(y\mid\alpha)-P(y)`, :math:`y` the token after :math:`\alpha`. By default
the tokens are the most frequent, the mean embedding of these tokens is taken off first (a common
direction says nothing about which are alike), and all pairs count the same. :data:`SENSITIVITY`
varies each of these choices alone.

Shapes: ``A`` chosen tokens, ``d`` width, ``R`` runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staircase_lib.alignment import cosine_similarity
from staircase_lib.language.corpus_counts import CorpusCounts, Side
from staircase_lib.language.counting import Form
from staircase_lib.language.similarity import correlation, cosines, tidy_row, with_runs

__all__ = ["SENSITIVITY", "Reference", "Variant", "alignment_rows", "references"]


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
        similarity = cosines(grams[key][:n, :n])[pairs]
        found.append(Reference(variant, n, similarity, weights / weights.sum()))
    return tuple(found)


def alignment_rows(embeddings: ArrayLike, references: Sequence[Reference]) -> list[dict[str, Any]]:
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
    for run, E in enumerate(with_runs(embeddings, 2, "embeddings")):
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
            value = correlation(similarity, reference.similarity, reference.weights)
            signature = f"{variant.side}, {variant.form}"
            rows.append(tidy_row("alignment", signature, variant.name, run, None, value))
    return rows
