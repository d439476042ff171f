r"""What counts of a corpus say about its tokens: predictability, neighbours, contexts, a report.

Shapes: ``A`` rows (tokens), ``V`` labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from staircase_lib.language.counting import Form, corpus_signature
from staircase_lib.language.tokens import TokenFile
from staircase_lib.language.vocabulary import UNKNOWN

__all__ = [
    "nearest_neighbours",
    "predictability",
    "ranked",
    "report",
    "report_of_triples",
    "strongest_contexts",
]


def predictability(counts: Any, least: int = 100) -> pd.DataFrame:
    r"""Entropy of what follows each token.

    .. math:: H_\alpha=-\sum_yP(y\mid\alpha)\log_2P(y\mid\alpha)

    Parameters
    ----------
    counts : sparse array, shape (A, V)
        From :func:`staircase_lib.language.counting.count_signatures`, order 0.
    least : int
        Rows with fewer counts are left out: their entropy would be one of too small a sample, which
        is biased downwards by about ``(distinct labels - 1) / (2 count log 2)`` bits.

    Returns
    -------
    DataFrame
        Columns ``token`` (row), ``count``, ``labels`` (distinct), ``bits``; most predictable first,
        ties by row.
    """
    table = sparse.csr_array(counts, dtype=np.float64, copy=True)
    total = np.asarray(table.sum(axis=1)).ravel()
    scale = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
    distinct = np.diff(table.indptr)
    table.data *= np.repeat(scale, distinct)
    table.data *= -np.log2(table.data)
    bits = np.asarray(table.sum(axis=1)).ravel()
    found: Any = pd.DataFrame(
        {
            "token": np.arange(len(total)),
            "count": total.astype(np.int64),
            "labels": distinct,
            "bits": np.maximum(bits, 0.0),
        }
    )
    found = found[found["count"] >= max(least, 1)]
    return found.sort_values(["bits", "token"], ignore_index=True)


def ranked(tokens: TokenFile, counts: Any, least: int = 100) -> pd.DataFrame:
    """Like :func:`predictability`, without the token that stands for all unknown words."""
    found: Any = predictability(counts, least)
    return found[found["token"] != tokens.id_of(UNKNOWN)]


def nearest_neighbours(
    signature: Any, tokens: ArrayLike, k: int = 5, among: ArrayLike | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Rows with the most similar signatures, by cosine.

    Parameters
    ----------
    signature : sparse or dense array, shape (A, V)
        From :func:`staircase_lib.language.counting.corpus_signature`.
    tokens : array of int, shape (T,)
        Rows whose neighbours are asked for.
    k : int
        Neighbours of each; fewer if there are not so many.
    among : array of int, optional
        Rows that may be neighbours. Default: all.

    Returns
    -------
    neighbours : int64 array, shape (T, k)
        Most similar first; never the row itself.
    similarity : float64 array, shape (T, k)
        Their cosines; zero for rows of zeros.

    Raises
    ------
    ValueError
        If a row is outside the table or k is not positive.
    """
    rows: Any = sparse.csr_array(signature, dtype=np.float64)
    asked = np.atleast_1d(np.asarray(tokens, dtype=np.int64))
    pool = np.arange(rows.shape[0]) if among is None else np.unique(np.asarray(among, np.int64))
    for name, values in (("tokens", asked), ("among", pool)):
        if values.size and (values.min() < 0 or values.max() >= rows.shape[0]):
            raise ValueError(f"{name}: expected rows in [0, {rows.shape[0]}), got {values}.")
    if k < 1:
        raise ValueError(f"k: expected a positive integer, got {k!r}.")
    norm = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    inverse = np.divide(1.0, norm, out=np.zeros_like(norm), where=norm > 0)
    cosine = (rows[asked] @ rows[pool].T).toarray() * inverse[asked, None] * inverse[pool]
    cosine[asked[:, None] == pool] = -np.inf
    k = min(k, len(pool) - int(np.isin(asked, pool).any()))
    order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
    return pool[order], np.take_along_axis(cosine, order, axis=1)


def report(
    tokens: TokenFile,
    counts: Any,
    *,
    asked: ArrayLike | None = None,
    form: Form = "ppmi",
    least: int = 100,
    rows: int = 10,
) -> dict[str, Any]:
    """Numbers of a corpus: sizes, most and least predictable tokens, nearest neighbours.

    Parameters
    ----------
    tokens : TokenFile
    counts : sparse array, shape (V, V)
        Its order-0 counts, all tokens.
    asked : array of int, optional
        Tokens whose neighbours are listed. Default: those of the most frequent ``rows``.
    form : {"probability", "centred", "root", "ppmi"}
        Signature that neighbours are judged by.
    least : int
        Tokens with fewer occurrences are neither ranked nor neighbours.
    rows : int
        Length of the lists.

    Returns
    -------
    dict
        JSON-ready: ``tokens``, ``documents``, ``vocab_size``, ``pairs`` (counted), ``distinct``,
        ``least``, ``rows``,
        ``most_predictable`` and ``least_predictable`` (lists of ``text``, ``count``, ``bits``),
        ``neighbours`` (lists of ``text`` and ``nearest``).
    """
    by_bits: Any = ranked(tokens, counts, least)
    frequent = by_bits.sort_values("count", ascending=False)["token"].to_numpy()
    chosen = frequent[:rows] if asked is None else np.atleast_1d(np.asarray(asked))

    neighbours = []
    if len(chosen) and len(frequent) > 1:
        nearest, _ = nearest_neighbours(corpus_signature(counts, form), chosen, 5, frequent)
        neighbours = [
            {"text": text, "nearest": tokens.texts(row)}
            for text, row in zip(tokens.texts(chosen), nearest, strict=True)
        ]
    return {
        "tokens": tokens.length,
        "documents": tokens.documents,
        "vocab_size": tokens.vocab_size,
        "pairs": int(counts.sum()),
        "distinct": int(counts.nnz),
        "least": least,
        "rows": rows,
        "most_predictable": _listed(tokens, by_bits.head(rows)),
        "least_predictable": _listed(tokens, by_bits.tail(rows).iloc[::-1]),
        "neighbours": neighbours,
    }


def _listed(tokens: TokenFile, table: Any) -> list[dict[str, Any]]:
    texts = tokens.texts(table["token"])
    columns = zip(texts, table["count"], table["bits"], strict=True)
    return [{"text": t, "count": int(c), "bits": round(float(b), 4)} for t, c, b in columns]


def strongest_contexts(triples: Any, rows: ArrayLike, least: int = 100, k: int = 3) -> pd.DataFrame:
    r"""Contexts that change most what follows a token.

    The strength of context :math:`x` of token :math:`\alpha` is its share of the mutual information
    of context and label,

    .. math:: P(x\mid\alpha)\sum_yP(y\mid\alpha,x)\log_2\frac{P(y\mid\alpha,x)}{P(y\mid\alpha)}

    Parameters
    ----------
    triples : sparse array, shape (A, V, V)
        From :func:`staircase_lib.language.counting.count_signatures`, order 1.
    rows : array of int, shape (T,)
        Rows of the table whose contexts are asked for.
    least : int
        Contexts that stand with the token less often are left out: few labels differ by chance.
    k : int
        Contexts of each.

    Returns
    -------
    DataFrame
        Columns ``row``, ``context``, ``count``, ``share`` (bits, as above), ``bits`` (entropy of
        the label in this context), ``label`` (the most frequent one); in the order of `rows`,
        strongest first, ties by context.
    """
    parts = []
    row_of = np.asarray(triples.coords[0])
    for row in np.atleast_1d(np.asarray(rows, dtype=np.int64)):
        here = slice(*np.searchsorted(row_of, [row, row + 1]))
        if here.start == here.stop:
            continue
        context, label = (np.asarray(axis)[here] for axis in triples.coords[1:])
        count = np.asarray(triples.data)[here].astype(np.float64)
        known, of_context = np.unique(context, return_inverse=True)
        in_context = np.bincount(of_context, count)
        _, of_label = np.unique(label, return_inverse=True)
        conditional, alone = count / in_context[of_context], np.bincount(of_label, count)[of_label]
        gain = count * np.log2(conditional * count.sum() / alone)
        likeliest = np.lexsort((label, -count, of_context))
        found: Any = pd.DataFrame(
            {
                "row": row,
                "context": known,
                "count": in_context.astype(np.int64),
                "share": np.bincount(of_context, gain) / count.sum(),
                "bits": np.abs(np.bincount(of_context, -conditional * np.log2(conditional))),
                "label": label[likeliest[np.unique(of_context[likeliest], return_index=True)[1]]],
            }
        )
        found = found[found["count"] >= max(least, 1)]
        parts.append(found.sort_values(["share", "context"], ascending=[False, True]).head(k))
    columns = ["row", "context", "count", "share", "bits", "label"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def report_of_triples(
    tokens: TokenFile,
    triples: Any,
    *,
    asked: ArrayLike | None = None,
    least: int = 100,
    rows: int = 10,
) -> dict[str, Any]:
    """Numbers of a corpus counted in triples: predictability of tokens, their strongest contexts.

    Parameters
    ----------
    tokens : TokenFile
    triples : sparse array, shape (A, V, V)
        Its order-1 counts.
    asked : array of int, shape (A,), optional
        The tokens that were counted, in the order of the rows. Default: all.
    least : int
        Tokens with fewer triples are not ranked, contexts with fewer not listed.
    rows : int
        Length of the lists.

    Returns
    -------
    dict
        JSON-ready: ``tokens``, ``documents``, ``vocab_size``, ``triples`` (counted), ``distinct``,
        ``least``, ``rows``, ``most_predictable`` and ``least_predictable`` as in :func:`report`,
        of the tokens that were counted; ``contexts`` (lists of ``text`` and ``contexts``, each
        with ``text``, ``count``, ``share``, ``bits`` and ``label``, the most frequent one).
    """
    row_of, _, label = triples.coords
    pairs = sparse.csr_array(
        sparse.coo_array(
            (triples.data, (row_of, label)), shape=(triples.shape[0], tokens.vocab_size)
        )
    )
    ids: Any = np.arange(triples.shape[0]) if asked is None else np.atleast_1d(np.asarray(asked))
    by_bits: Any = predictability(pairs, least)
    chosen = by_bits.sort_values("count", ascending=False)["token"].to_numpy()[:rows]
    if asked is not None:
        chosen = np.arange(len(ids))
    by_bits = by_bits.assign(token=ids[by_bits["token"]])
    by_bits = by_bits[by_bits["token"] != tokens.id_of(UNKNOWN)]
    contexts = []
    strongest: Any = strongest_contexts(triples, chosen, least)
    for row, found in strongest.groupby("row", sort=False):
        texts, labels = tokens.texts(found["context"]), tokens.texts(found["label"])
        columns = zip(texts, found["count"], found["share"], found["bits"], labels, strict=True)
        contexts.append(
            {
                "text": tokens.texts([int(ids[row])])[0],
                "contexts": [
                    {
                        "text": text,
                        "count": int(count),
                        "share": round(float(share), 4),
                        "bits": round(float(bits), 4),
                        "label": label,
                    }
                    for text, count, share, bits, label in columns
                ],
            }
        )
    return {
        "tokens": tokens.length,
        "documents": tokens.documents,
        "vocab_size": tokens.vocab_size,
        "triples": int(triples.sum()),
        "distinct": int(triples.nnz),
        "least": least,
        "rows": rows,
        "most_predictable": _listed(tokens, by_bits.head(rows)),
        "least_predictable": _listed(tokens, by_bits.tail(rows).iloc[::-1]),
        "contexts": contexts,
    }
