r"""The first stair in closed form: geometry and time from the signatures alone (X.2 of this book).

While logits are small, the residual of a sequence is :math:`e_y-\tfrac1V\mathbf 1` and the
activation is :math:`\sigma(z)\approx\sigma'(0)z`. The model is then a linear network of three
matrices, and gradient flow is

.. math:: \dot E=c\,G\,U^\top W^\top,\qquad \dot W=c\,E^\top G\,U^\top,\qquad
          \dot U=c\,W^\top E^\top G,\qquad c=\sigma'(0),

driven by one constant matrix, whose rows are the centred zeroth-order signatures,

.. math:: G_\alpha=L\,P(\alpha)\,\big(S^{(0)}_\alpha-\tfrac1V\mathbf 1\big)\in\mathbb R^V .

With :math:`G=\sum_j\lambda_j\,p_jq_j^\top` its singular value decomposition, mode :math:`j` grows
on its own, and the largest :math:`\lambda` first: the embeddings leave their random start along
:math:`p_1`. All initial entries have standard deviation :math:`d^{-\gamma}`; in the time
:math:`\tau=c\lambda_jd^{1/2-\gamma}t` every width and rate has the same limit, which grows without
bound at :math:`\tau^*` (:func:`escape_constant`). So the first stair comes at

.. math:: t^*=\frac{\tau^*\,d^{\gamma-1/2}}{\sigma'(0)\,\lambda_1}.

No model is trained for any of this. :func:`gradient_flow` is what it is compared with.

Shapes: ``V`` vocabulary, ``d`` width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from staircase_lib.models import EmbeddingFFN
from staircase_lib.signatures import label_signature
from staircase_lib.tasks import Task

__all__ = [
    "FirstStair",
    "Flow",
    "driving_matrix",
    "escape_constant",
    "first_stair",
    "gradient_flow",
]


def driving_matrix(task: Task) -> NDArray[np.float64]:
    r"""The matrix :math:`G` that drives every weight while logits are small.

    Returns
    -------
    float64 array, shape (V, V)
        Token, label; rows of tokens that never occur are zero, every row sums to zero.
    """
    occurring = np.unique(task.tokens[task.weights > 0])
    matrix = np.zeros((task.vocab_size, task.vocab_size))
    occurrences = task.length * task.token_probability(occurring)
    centred = label_signature(task, 0, occurring) - 1 / task.vocab_size
    matrix[occurring] = occurrences[:, None] * centred
    return matrix


@cache
def escape_constant(nodes: int = 128) -> float:
    r"""Time :math:`\tau^*` at which a single mode of the linear network escapes, as width grows.

    In units in which the mode's two vectors start with length one and the hidden weights with
    entries of variance :math:`1/d`, the growing vector on the tokens' side obeys

    .. math:: \ddot a=\big(2|a|^2+WW^\top\big)a-a_0\,(a_0\cdot a)\quad(W\text{ at its start}),

    because the flow conserves :math:`E^\top E-WW^\top` and :math:`W^\top W-UU^\top`. As the width
    grows, the spectrum of :math:`WW^\top` becomes that of Marchenko and Pastur, and
    :math:`a=\varphi(WW^\top)a_0+\psi(WW^\top)\dot a_0` with one ordinary differential equation for
    each point of the spectrum.

    Parameters
    ----------
    nodes : int
        Points of the spectrum (Gauss quadrature of the semicircle law).

    Returns
    -------
    float
        For equal widths of embedding and hidden layer.
    """
    k = np.arange(1, nodes + 1) * np.pi / (nodes + 1)
    x = 4 * np.cos(k) ** 2
    weight = 2 / (nodes + 1) * np.sin(k) ** 2
    top = 1e4

    def right(_: float, state: NDArray) -> NDArray:
        phi, psi, d_phi, d_psi = state.reshape(4, nodes)
        size = weight @ (phi**2 + x * psi**2)
        stiffness = 2 * size + x
        return np.concatenate([d_phi, d_psi, stiffness * phi - weight @ phi, stiffness * psi])

    def escaped(_: float, state: NDArray) -> float:
        phi, psi = state.reshape(4, nodes)[:2]
        return float(np.sqrt(weight @ (phi**2 + x * psi**2)) - top)

    escaped.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    start = np.repeat([1.0, 0.0, 0.0, 1.0], nodes)
    solution = solve_ivp(
        right, (0.0, 10.0), start, method="DOP853", rtol=1e-9, atol=1e-12, events=escaped
    )
    return float(solution.t[-1] + 1 / top)  # the rest of the way: |a|' = |a|^2


@dataclass(frozen=True)
class FirstStair:
    """What the zeroth-order signatures predict about the first stair.

    Attributes
    ----------
    values : float64 array, shape (V,)
        Singular values of the driving matrix, largest first.
    tokens : float64 array, shape (V, V)
        Column ``j`` is the direction over tokens of mode ``j``.
    labels : float64 array, shape (V, V)
        Column ``j`` is the direction over labels of mode ``j``.
    multiplicity : int
        How many modes share the largest value; only their joint space is predicted.
    """

    values: NDArray[np.float64]
    tokens: NDArray[np.float64]
    labels: NDArray[np.float64]
    multiplicity: int

    def time(self, d: int, gamma: float, slope: float) -> float:
        r"""Time of the stair, :math:`\tau^*d^{\gamma-1/2}/(\sigma'(0)\lambda_1)`.

        Parameters
        ----------
        d : int
            Width of the embeddings and of the hidden layer.
        gamma : float
            Initialization rate.
        slope : float
            :math:`\sigma'(0)`: one half for GELU, one for tanh, :math:`c_1` for a polynomial.
        """
        return escape_constant() * d ** (gamma - 0.5) / (slope * float(self.values[0]))

    def overlap(self, embeddings: NDArray) -> float:
        """Cosine of the angle between embeddings' leading direction and the predicted space.

        Parameters
        ----------
        embeddings : array, shape (V, d)

        Returns
        -------
        float
            In [0, 1]; one if the leading left singular vector lies in the space.
        """
        leading = np.linalg.svd(embeddings, full_matrices=False)[0][:, 0]
        return float(np.linalg.norm(leading @ self.tokens[:, : self.multiplicity]))


def first_stair(task: Task, tolerance: float = 1e-6) -> FirstStair:
    """Predict the first stair of a task.

    Parameters
    ----------
    task : Task
    tolerance : float
        Singular values count as equal to the largest up to this relative difference.

    Returns
    -------
    FirstStair

    Raises
    ------
    ValueError
        If all zeroth-order signatures are uniform: order zero then drives nothing.
    """
    matrix = driving_matrix(task)
    tokens, values, labels = np.linalg.svd(matrix)
    if values[0] < 1e-12:
        raise ValueError(
            f"{task.name or 'the task'}: every zeroth-order signature is uniform over the "
            f"vocabulary, so that order zero drives nothing and there is no first stair to "
            f"predict; give it tokens that are never labels, or look at a higher order."
        )
    multiplicity = int((values >= values[0] * (1 - tolerance)).sum())
    return FirstStair(values, tokens, labels.T, multiplicity)


@dataclass(frozen=True)
class Flow:
    """Gradient flow at the solver's own times.

    Attributes
    ----------
    times : float64 array, shape (S,)
    loss : float64 array, shape (S,)
    embeddings : float64 array, shape (S, V, d)
    """

    times: NDArray[np.float64]
    loss: NDArray[np.float64]
    embeddings: NDArray[np.float64]

    def time_at(self, loss: float) -> float:
        """Time at which the falling loss reaches a value, interpolated; ``nan`` if it does not."""
        below = np.flatnonzero(self.loss <= loss)
        if len(below) == 0 or below[0] == 0:
            return float("nan")
        i = below[0]
        share = (self.loss[i - 1] - loss) / (self.loss[i - 1] - self.loss[i])
        return float(self.times[i - 1] + share * (self.times[i] - self.times[i - 1]))


def gradient_flow(
    model: EmbeddingFFN, task: Task, until: float, *, stop_loss: float = 0.0, rtol: float = 1e-7
) -> Flow:
    r"""Integrate :math:`\dot\theta=-\nabla\mathcal L` from the model's weights, in float64.

    Parameters
    ----------
    model : EmbeddingFFN
        In float64, without a run axis; left as it is.
    task : Task
    until : float
        Last time.
    stop_loss : float
        Stop earlier, where the loss has fallen to this value.
    rtol : float
        Relative error of a step of the solver (DOP853).

    Returns
    -------
    Flow

    Raises
    ------
    ValueError
        If the model is not in float64, has a run axis or another vocabulary, or the time is not
        finite and positive.
    RuntimeError
        If the solver gives up.
    """
    if model.runs is not None or model.W_E.dtype != torch.float64:
        raise ValueError(
            f"model: expected a single model in torch.float64, got {model.W_E.dtype} with "
            f"runs={model.runs}; an ordinary differential equation is solved to many digits."
        )
    if model.vocab_size != task.vocab_size:
        raise ValueError(
            f"model: expected the task's vocabulary of {task.vocab_size}, got {model.vocab_size}."
        )
    if not (np.isfinite(until) and until > 0):
        raise ValueError(f"until: expected a finite time above zero, got {until!r}.")
    tokens, labels = torch.tensor(task.tokens), torch.tensor(task.labels)
    weights = torch.tensor(task.weights)
    shapes = [p.shape for p in model.parameters()]
    sizes = [p.numel() for p in model.parameters()]
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()

    def unpack(state: NDArray) -> list[torch.Tensor]:
        pieces = torch.tensor(state).split(sizes)
        return [x.reshape(s) for x, s in zip(pieces, shapes, strict=True)]

    def loss_of(parameters: list[torch.Tensor]) -> torch.Tensor:
        W_E, W_in, W_U = parameters
        z = (W_E @ W_in)[tokens].sum(1)
        logits = model.sigma(z) @ W_U
        each = torch.logsumexp(logits, 1) - logits.gather(1, labels[:, None])[:, 0]
        return each @ weights

    def right(_: float, state: NDArray) -> NDArray:
        parameters = [p.requires_grad_() for p in unpack(state)]
        gradient = torch.autograd.grad(loss_of(parameters), parameters)
        return -torch.cat([g.reshape(-1) for g in gradient]).numpy()

    def done(_: float, state: NDArray) -> float:
        return float(loss_of(unpack(state))) - stop_loss

    done.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    # Small weights matter from the first moment on: errors are bounded relative to them.
    atol = rtol * float(np.abs(start).mean())
    solution = solve_ivp(
        right, (0.0, until), start, method="DOP853", rtol=rtol, atol=atol, events=done
    )
    if not solution.success:
        raise RuntimeError(
            f"gradient flow stopped at time {solution.t[-1]:.3g} of {until:.3g}: "
            f"{solution.message} Lower until, or raise rtol (now {rtol:g})."
        )
    states = solution.y.T
    loss = np.array([float(loss_of(unpack(state))) for state in states])
    embeddings = states[:, : sizes[0]].reshape(-1, *shapes[0])
    return Flow(solution.t, loss, embeddings)
