"""What was counted in a corpus, as charts and as one HTML file that needs nothing else.

Every chart function takes tokens and their order-0 counts and returns an Altair chart, or None
where there is nothing to draw. Tokens are text of unknown origin: they are shown, never obeyed.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.cluster import hierarchy

from staircase_lib import figures, standalone
from staircase_lib.alignment import cosine_similarity, pca
from staircase_lib.language import scale, summary
from staircase_lib.language.counting import Form, corpus_signature
from staircase_lib.language.tokens import TokenFile
from staircase_lib.printable import printable
from staircase_lib.standalone import number, table

__all__ = [
    "growth_chart",
    "map_chart",
    "predictability_chart",
    "provenance",
    "similarity_chart",
    "write_html",
]

_MOST_POINTS = 1500
_MOST_MAPPED = 200
_MOST_IN_HEATMAP = 32


# --- Charts ---------------------------------------------------------------------------------------


def predictability_chart(
    tokens: TokenFile, counts: Any, *, least: int = 100, label: str = "the token after it"
) -> Any:
    """Bits of what follows a token against how frequent it is, a point a token."""
    ranked = summary.ranked(tokens, counts, least).sort_values("count", ascending=False)
    if ranked.empty:
        return None
    if len(ranked) > _MOST_POINTS:  # all of the frequent half, then evenly by rank
        half = _MOST_POINTS // 2
        rest = np.linspace(half, len(ranked) - 1, _MOST_POINTS - half).round().astype(int)
        ranked = ranked.iloc[np.unique(np.concatenate([np.arange(half), rest]))]
    # Names go to the extremes of each stretch of frequencies first
    stretch = np.arange(len(ranked)) // max(1, len(ranked) // 12)
    within = ranked["bits"].groupby(stretch)
    extreme = np.minimum(within.rank(method="first"), within.rank(method="first", ascending=False))
    shown: Any = ranked.assign(extreme=extreme).sort_values("extreme", kind="stable")
    named = pd.DataFrame(
        {
            "name": tokens.texts(shown["token"]),
            "x": shown["count"].to_numpy(),
            "y": shown["bits"].to_numpy(),
        }
    )
    return figures.token_scatter(
        named, x_title="occurrences (log scale)", y_title=f"bits of {label}", log_x=True
    )


def map_chart(
    tokens: TokenFile,
    counts: Any,
    chosen: ArrayLike | None = None,
    *,
    form: Form = "root",
    least: int = 100,
) -> Any:
    """Two principal components of the signatures, as a map; default: of the most frequent."""
    rows = _frequent(tokens, counts, least, _MOST_MAPPED) if chosen is None else _ids(chosen)
    signature = _directions(counts, form, rows)
    if min(signature.shape) < 3:  # no two directions to speak of
        return None
    points, explained = pca(signature, 2)
    place = pd.DataFrame({"name": tokens.texts(rows), "x": points[:, 0], "y": points[:, 1]})
    share = f"variance {explained[0]:.0%} + {explained[1]:.0%}"
    return figures.token_scatter(place, x_title="", y_title="", square=True, title=share)


def similarity_chart(
    tokens: TokenFile,
    counts: Any,
    chosen: ArrayLike | None = None,
    *,
    form: Form = "root",
    least: int = 100,
) -> Any:
    """Cosines of signatures less their mean; default: of the most frequent, like beside like."""
    rows = _frequent(tokens, counts, least, _MOST_IN_HEATMAP) if chosen is None else _ids(chosen)
    if len(rows) < 2:
        return None
    signature = _directions(counts, form, rows)
    similarity = cosine_similarity(signature - signature.mean(axis=0))
    if chosen is None:
        order = _side_by_side(similarity)
        rows, similarity = rows[order], similarity[np.ix_(order, order)]
    return figures.similarity_heatmap([0], similarity, tokens.texts(rows), time_title="")


def growth_chart(counts: Any) -> Any:
    """Distinct pairs among random parts of all pairs."""
    total = int(counts.sum())
    sizes = np.unique(np.geomspace(max(total / 1024, 1), total, 21).round())
    found = scale.rarefied(counts, sizes / total)
    drawn = pd.DataFrame({"step": sizes, "value": found, "seed": 0})
    if len(drawn) < 2:
        return None
    return figures.metric_curves(
        drawn, y_title="distinct pairs (log scale)", log_y=True, time_title="pairs counted"
    )


def _ids(chosen: ArrayLike) -> NDArray[np.int64]:
    return np.atleast_1d(np.asarray(chosen, dtype=np.int64))


def _frequent(tokens: TokenFile, counts: Any, least: int, most: int) -> NDArray[np.int64]:
    ranked = summary.ranked(tokens, counts, least)
    return ranked.sort_values("count", ascending=False)["token"].to_numpy()[:most]


def _directions(counts: Any, form: Form, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Signatures of some tokens over the labels that any of them has, of unit length."""
    signature: Any = corpus_signature(counts, form)[rows]
    if not isinstance(signature, np.ndarray):
        signature = signature[:, np.unique(signature.indices)].toarray()
    length = np.linalg.norm(signature, axis=1, keepdims=True)
    return signature / np.where(length > 0, length, 1.0)


def _side_by_side(similarity: NDArray[np.float64]) -> NDArray[np.int64]:
    """An order that keeps like rows together: the leaves of their tree."""
    apart = (1 - similarity)[np.triu_indices(len(similarity), 1)]
    tree = hierarchy.linkage(np.maximum(apart, 0), "average", optimal_ordering=True)
    return hierarchy.leaves_list(tree).astype(np.int64)


# --- One HTML file --------------------------------------------------------------------------------

_TOO_FEW = "Too few tokens occur often enough for this picture; see --least."


def provenance(tokens: TokenFile, corpus: str, command: str) -> dict[str, str]:
    """How a report was made: what was called, on which ids, with which versions."""
    digest = hashlib.sha256()
    ids = tokens.ids
    for start in range(0, len(ids), 1 << 22):
        digest.update(np.ascontiguousarray(ids[start : start + (1 << 22)]).data)
    tokenizer = tokens.tokenizer
    vocabulary = hashlib.sha256(tokenizer.to_str().encode()).hexdigest() if tokenizer else "none"
    packages = ("context-staircase", "numpy", "scipy", "tokenizers")
    return {
        "command": command,
        "corpus": corpus,
        "SHA-256 of the token ids": digest.hexdigest(),
        "SHA-256 of the vocabulary": vocabulary,
        "versions": ", ".join(
            [f"Python {platform.python_version()}", *(f"{p} {version(p)}" for p in packages)]
        ),
    }


def write_html(
    tokens: TokenFile,
    counts: Any,
    numbers: Mapping[str, Any],
    made: Mapping[str, str],
    *,
    name: str,
    form: Form = "ppmi",
    window: int = 1,
    direction: str = "next",
) -> str:
    """The report as one HTML document.

    Parameters
    ----------
    tokens : TokenFile
    counts : sparse array, shape (V, V)
        Its order-0 counts, all tokens.
    numbers : mapping
        From :func:`staircase_lib.language.summary.report`.
    made : mapping of str to str
        How it was made, from :func:`provenance`.
    name : str
        Of the corpus.
    form, window, direction
        As they were for the numbers and for the counts.

    Returns
    -------
    str
    """
    figures.enable()
    least = int(numbers["least"])
    label = _label(window, direction)
    known = scale.new_share(counts)
    singles = int((counts.data == 1).sum())
    sizes = [
        ["tokens", f"{numbers['tokens']:,}"],
        ["documents", f"{numbers['documents']:,}"],
        ["vocabulary", f"{numbers['vocab_size']:,}"],
        ["tokens that occur", f"{int((counts.sum(axis=1) > 0).sum()):,}"],
        ["pairs", f"{numbers['pairs']:,}"],
        ["distinct pairs", f"{numbers['distinct']:,}"],
        ["of these, seen once", f"{singles:,}"],
        ["share of the table that is not zero", f"{_filled(numbers):.3%}"],
        ["entropy of a token, alone", f"{_entropy(counts):.2f} bits"],
        [f"entropy of {label}, given a token", f"{_entropy_given(counts):.2f} bits"],
    ]
    few = "" if len(numbers["most_predictable"]) == numbers["rows"] else (
        f"<p>Tokens that occur {least:,} times or more only.</p>"
    )  # fmt: skip
    body = [
        f"<h1>{standalone.token(name)}</h1>",
        f"<p>Given a token, what is {escape(label)}? The answer is its signature "
        "<i>S</i><sup>(0)</sup>, counted exactly for every token. Below: how predictable tokens "
        "are, which are alike, and how much more a larger corpus would tell.</p>",
        table(["size", ""], sizes),
        "<h2>How predictable each token is</h2>",
        standalone.figure(
            "predictability",
            predictability_chart(tokens, counts, least=least, label=label),
            f"A point a token: entropy of {escape(label)} against its number of occurrences. "
            "<em>How to read it:</em> at the bottom stand tokens that leave no choice, such as the "
            "first part of a name; at the top those after which nearly anything may come. Rare "
            "tokens have low entropy in part because they are rare: a token seen <i>c</i> times "
            "cannot show more than log<sub>2</sub>&nbsp;<i>c</i> bits.",
            _TOO_FEW,
        ),
        few,
        _ranking("most predictable", numbers["most_predictable"]),
        _ranking("least predictable", numbers["least_predictable"]),
        "<h2>Which tokens are alike</h2>",
        f"<p>Two tokens are alike if what stands beside them is: the cosine of their signatures, "
        f"in the form <i>{escape(form)}</i>. Nothing was trained.</p>",
        table(
            ["token", "nearest by signature"],
            [[[row["text"]], row["nearest"]] for row in numbers["neighbours"]],
        )
        if numbers["neighbours"]
        else f"<p><em>{_TOO_FEW}</em></p>",
        standalone.figure(
            "map",
            map_chart(tokens, counts, least=least),
            "Map of the most frequent tokens: the two directions in which the square roots of "
            "their signatures differ most (principal components). <em>How to read it:</em> near "
            "means alike; directions and signs have no meaning of their own, and what the two "
            "directions leave out is not seen.",
            _TOO_FEW,
        ),
        standalone.figure(
            "similarity",
            similarity_chart(tokens, counts, least=least),
            "Similarity of the most frequent tokens, like ones beside each other: cosines of the "
            "same square roots, after what all of these tokens share is taken away. <em>How to "
            "read it:</em> red blocks along the diagonal are groups of tokens that keep the same "
            "company; blue is unlike.",
            _TOO_FEW,
        ),
        "<h2>What a larger corpus would add</h2>",
        f"<p>Of all pairs, {number(100 * known)}&nbsp;% were seen once. That is also the chance "
        "that the next pair of a text like this one is new.</p>",
        standalone.figure(
            "growth",
            growth_chart(counts),
            "Distinct pairs among ever larger random parts of all pairs, expected from the counts. "
            "<em>How to read it:</em> a curve that rises steadily to its end says that most pairs "
            "of this language have not been seen; one that flattens, that the table fills up.",
            "Too few pairs for this picture.",
        ),
        "<h2>How this was made</h2>",
        "<dl>"
        + "".join(
            f"<dt>{escape(key)}</dt><dd>{escape(printable(value))}</dd>"
            for key, value in made.items()
        )
        + "</dl>",
    ]
    everything = {**numbers, "new_share": known, "made": dict(made)}
    return standalone.document(f"{name}: signatures of a corpus", body, everything)


def _label(window: int, direction: str) -> str:
    side = {"next": "after", "previous": "before", "both": "before or after"}[direction]
    return f"the token {side} it" if window == 1 else f"a token up to {window} places {side} it"


def _ranking(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [[[r["text"]], f"{r['count']:,}", f"{r['bits']:.3f}"] for r in rows]
    return table([title, "occurrences", "bits"], cells) if cells else ""


def _filled(numbers: Mapping[str, Any]) -> float:
    return numbers["distinct"] / numbers["vocab_size"] ** 2


def _entropy(counts: Any) -> float:
    totals = np.asarray(counts.sum(axis=0), dtype=np.float64).ravel()
    p = totals[totals > 0] / totals.sum()
    return float(-(p * np.log2(p)).sum())


def _entropy_given(counts: Any) -> float:
    every = summary.predictability(counts, 1)
    return float(np.average(every["bits"], weights=every["count"]))
