r"""What floating point and the norm's epsilon make of a small start.

Three limits lie on the way to a smaller initialization, and none of them shows in the loss:

1. **Epsilon.** States whose mean square is below :math:`\epsilon` are not normalised but multiplied
   by :math:`1/\sqrt\epsilon`: :func:`epsilon_share`.
2. **AdamW** divides a gradient by its own size plus ``eps = 1e-8``. A gradient far below that
   hardly moves its weight; the weights of queries and keys are the first, as their gradient is a
   product of many small factors.
3. **Underflow.** Below 1e-38 numbers lose digits and then vanish, in bfloat16 as in float32, which
   has more digits but the same range: :func:`check_precision`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staircase_lib.language.transformer import Transformer

__all__ = ["check_precision", "epsilon_share"]


def epsilon_share(mean_square: float, epsilon: float) -> float:
    r"""Share of :math:`\epsilon` in what the norm divides a state by.

    .. math:: \frac{\epsilon}{\tfrac1d\lVert x\rVert^2+\epsilon}

    Near 0 the state's scale is lost in the norm; near 1 it passes through a linear map.

    Parameters
    ----------
    mean_square : float
        :math:`\tfrac1d\lVert x\rVert^2`; an embedding starts at ``d**(-2 * gamma)``.
    epsilon : float

    Examples
    --------
    >>> [round(epsilon_share(1024 ** (-2 * gamma), 1e-6), 2) for gamma in (0.5, 1.0, 1.2)]
    [0.0, 0.51, 0.94]
    """
    return epsilon / (mean_square + epsilon)


def check_precision(
    model: Transformer, tokens: Tensor, dtype: torch.dtype = torch.bfloat16
) -> dict[str, float]:
    """Refuse a start whose gradients a number format cannot hold.

    Parameters
    ----------
    model : Transformer
        Initialized. Its gradients are left as they are.
    tokens : int64 Tensor, shape (n, L + 1) or (R, n, L + 1)
        A few sequences.
    dtype : torch.dtype
        Of the products: ``torch.bfloat16`` is run under autocast, any other as the model is.

    Returns
    -------
    dict
        Largest absolute entry of the gradient of each parameter; in the run where it is smallest.

    Raises
    ------
    ValueError
        If for any parameter that is not finite, or below the smallest number that ``dtype`` holds
        with all its digits.
    """
    device = tokens.device.type
    named = dict(model.named_parameters())
    with torch.enable_grad(), torch.autocast(device, dtype, enabled=dtype == torch.bfloat16):
        loss = model.loss(tokens)
    gradients = torch.autograd.grad(loss.sum(), list(named.values()))
    by_run = 1 if model.runs is None else model.runs
    largest = {
        name: float(gradient.reshape(by_run, -1).abs().amax(-1).min())
        for name, gradient in zip(named, gradients, strict=True)
    }
    least = torch.finfo(dtype).tiny
    lost = {name: size for name, size in largest.items() if not least <= size < float("inf")}
    if lost:
        name, size = min(lost.items(), key=lambda item: item[1])
        start = float(named[name].detach().std())
        raise ValueError(
            f"model: {dtype} cannot hold the gradients of {len(lost)} of {len(largest)} "
            f"parameters; the largest entry of that of {name}, whose weights have size "
            f"{start:.1e}, is {size:.1e}, expected {least:.1e} at least. Start larger (a smaller "
            f"gamma); float32 reaches no further down than bfloat16, float64 does."
        )
    return largest
