r"""What the signatures of any task let one expect of its training, before any (X.4 of this book).

:func:`predict` says which orders tell the anchors apart, along which directions the embeddings
leave their random start, and when. :func:`staircase_lib.measurement.measure` then trains.

Everything degenerate has an answer: where order 0 drives nothing there is no stair to predict, and
``Prediction.notes`` says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from staircase_lib import models, signatures, stairs
from staircase_lib.tasks import Task

__all__ = ["Prediction", "Settings", "predict"]

#: Modes whose singular value is within this share of the largest make up the first stair.
NEAR = 0.2
#: Share of the loss that one token alone can explain; the stair is dated when it is gone.
DATED = 0.1

_SLOPE = 0.5  # of GELU at zero
_MOST_SIGNATURE_ENTRIES = 2e7
_MOST_TOKENS_DECOMPOSED = 1500


@dataclass(frozen=True)
class Settings:
    """How a task is measured.

    Attributes
    ----------
    seeds : tuple of int
    d : int
        Width of embeddings and hidden layer.
    gamma : float
        Initialization rate.
    steps : int
        Steps of AdamW.
    lr : float
        Its learning rate.
    orders : int, optional
        Highest signature order looked at. Default: as many as the task has and time allows.
    snapshots : int
        Number of moments at which the embeddings are looked at.
    """

    seeds: tuple[int, ...] = tuple(range(10))
    d: int = 128
    gamma: float = 1.3
    steps: int = 1500
    lr: float = 2e-3
    orders: int | None = None
    snapshots: int = 24

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds: expected distinct numbers not below 0, got {self.seeds}.")
        models.check_sizes(d=self.d, steps=self.steps, snapshots=self.snapshots)
        for name in ("gamma", "lr"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 < float(value) < math.inf:
                raise ValueError(f"{name}: expected a finite number above zero, got {value!r}.")
        orders = self.orders
        whole = isinstance(orders, Integral) and not isinstance(orders, bool)
        if orders is not None and not (whole and orders >= 0):
            raise ValueError(f"orders: expected a whole number not below 0, got {orders!r}.")


@dataclass(frozen=True)
class Prediction:
    """What signatures say before any training.

    Attributes
    ----------
    task : Task
    settings : Settings
    orders : DataFrame
        A row an order: ``order``, ``information`` (bits, see
        :func:`~staircase_lib.signatures.information`).
    entropy : float
        Of the label, in bits: all that there is to learn.
    entropy_given_token : float
        Of the label given one token, in bits.
    floor : float
        Of the label given the tokens of a sequence regardless of their order: the best loss that
        the model can reach, in bits.
    ceiling : float
        The best accuracy that it can reach.
    stair : FirstStair or None
        None if order 0 drives nothing.
    """

    task: Task
    settings: Settings
    orders: pd.DataFrame
    entropy: float
    entropy_given_token: float
    floor: float
    ceiling: float
    stair: stairs.FirstStair | None

    @property
    def first_order(self) -> int | None:
        """Lowest order that tells the anchors apart; None if no order looked at does."""
        for order, information in enumerate(self.orders["information"].to_numpy()):
            if information > 1e-9:
                return order
        return None

    @property
    def time(self) -> float:
        """Time of the first stair under gradient flow; ``nan`` without one."""
        if self.stair is None:
            return math.nan
        return self.stair.time(self.settings.d, self.settings.gamma, _SLOPE)

    @property
    def dated(self) -> float:
        """Loss, in nats, at which the stair is dated: a tenth of the way to what one token says."""
        start = math.log(self.task.vocab_size)
        return start - DATED * (start - self.entropy_given_token * math.log(2))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is left out and what is degenerate, and what that means for the numbers."""
        task = self.task
        _, limited = _orders(task, self.settings.orders)
        notes = [limited] if limited else []
        if self.entropy < 1e-12:
            notes.append(
                "Every sequence has the same label: there is nothing to tell tokens apart by, and "
                "alignments are undefined."
            )
        elif self.first_order is None:
            notes.append(
                "No order looked at tells the anchors apart: knowing which of them a token is says "
                "nothing about the label."
            )
        elif self.first_order > 0 and self.stair is not None:
            notes.append(
                f"Order 0 is the same for all anchors: their embeddings are expected to collapse "
                f"onto one direction, until order {self.first_order} separates them."
            )
        if self.stair is None and task.vocab_size > _MOST_TOKENS_DECOMPOSED:
            notes.append(
                f"No first stair is predicted: the vocabulary has more than "
                f"{_MOST_TOKENS_DECOMPOSED} tokens."
            )
        elif self.stair is None:
            notes.append(
                "Every zeroth-order signature is uniform over the vocabulary: order 0 drives "
                "nothing and there is no first stair to predict."
            )
        if task.length == 1:
            notes.append("Sequences have one token: order 0 is the only one there is.")
        if len(task.anchors) < 3:
            notes.append(
                f"Only {len(task.anchors)} token(s) are followed: a correlation over pairs needs "
                f"three."
            )
        if self.ceiling < 1 - 1e-9 and self.entropy >= 1e-12:
            notes.append(
                f"Sequences with the same tokens have different labels: no model that adds its "
                f"tokens up can be right in more than {self.ceiling:.1%} of cases. If the position "
                f"of a token matters, give each position its own tokens."
            )
        return tuple(notes)

    def _directions(self) -> NDArray[np.float64]:
        """Orthonormal basis of the predicted directions over the anchors, means removed."""
        if self.stair is None:
            return np.zeros((len(self.task.anchors), 0))
        rows = self.stair.tokens[self.task.anchors, : self.stair.multiplicity]
        basis, size, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
        return basis[:, size > 1e-6]

    def correlation(self, embeddings: NDArray) -> float:
        """Correlation over anchors of the embeddings' leading direction with the predicted ones.

        Parameters
        ----------
        embeddings : array, shape (V, d)

        Returns
        -------
        float
            In [0, 1]; the multiple correlation where several directions are predicted together.
            ``nan`` where all anchors are predicted alike or there are too few to tell.
        """
        basis = self._directions()
        known = basis.shape[1] > 0 and bool(np.any(embeddings))
        if not known or len(basis) < basis.shape[1] + 3:
            return math.nan
        leading = np.linalg.svd(embeddings, full_matrices=False)[0][self.task.anchors, 0]
        leading = leading - leading.mean()
        size = float(np.linalg.norm(leading))
        return float(np.linalg.norm(basis.T @ leading)) / size if size > 1e-12 else math.nan


def _entropy(probability: NDArray) -> float:
    p = probability[probability > 0]
    return max(0.0, float(-(p * np.log2(p)).sum()))


def _orders(task: Task, highest: int | None) -> tuple[int, str]:
    """Highest order to look at, and a note if it is less than the task has."""
    top = min(task.length - 1, 3) if highest is None else min(highest, task.length - 1)

    def entries(m: int) -> float:
        return len(task.labels) * math.perm(task.length, m + 1)

    affordable = top
    while affordable and entries(affordable) > _MOST_SIGNATURE_ENTRIES:
        affordable -= 1
    if affordable == task.length - 1:
        return affordable, ""
    asked = "as asked for" if affordable == highest else "higher ones would be too large to follow"
    return affordable, f"Signatures up to order {affordable} of {task.length - 1}, {asked}."


def predict(task: Task, settings: Settings | None = None) -> Prediction:
    """What the signatures of a task say about its training, before any.

    Parameters
    ----------
    task : Task
    settings : Settings, optional

    Returns
    -------
    Prediction
    """
    settings = settings or Settings()
    highest, _ = _orders(task, settings.orders)
    orders = pd.DataFrame(
        [{"order": m, "information": signatures.information(task, m)} for m in range(highest + 1)]
    )
    occurring = np.unique(task.tokens[task.weights > 0])
    given_token: Any = signatures.label_signature(task, 0, occurring, sparse=True)
    share = task.token_probability(occurring)[given_token.coords[0]]
    given = float(-(share * given_token.data * np.log2(given_token.data)).sum())
    sorted_rows = np.sort(task.tokens, axis=1)
    _, group = np.unique(sorted_rows, axis=0, return_inverse=True)
    (
        _,
        joint,
    ) = np.unique(np.stack([group.ravel(), task.labels]), axis=1, return_inverse=True)
    of_joint = np.bincount(joint.ravel(), weights=task.weights)
    of_group = np.bincount(group.ravel(), weights=task.weights)
    best = np.zeros(len(of_group))
    np.maximum.at(best, group.ravel(), of_joint[joint.ravel()])
    stair = None
    if (
        task.vocab_size <= _MOST_TOKENS_DECOMPOSED
        and np.abs(stairs.driving_matrix(task)).max() > 1e-9
    ):
        stair = stairs.first_stair(task, tolerance=NEAR)
    return Prediction(
        task=task,
        settings=settings,
        orders=orders,
        entropy=_entropy(np.bincount(task.labels, weights=task.weights)),
        entropy_given_token=max(0.0, given),
        floor=max(0.0, _entropy(of_joint) - _entropy(of_group)),
        ceiling=min(1.0, float(best.sum())),
        stair=stair,
    )
