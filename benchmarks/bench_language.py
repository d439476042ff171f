"""A step of training our language model, beside those of others of equal shape, on one thread.

All steps are whole and end alike: loss, gradient, clipping, fused AdamW. Products of large matrices
of as many operations as the step needs take their turn like the others: their ratio is the share of
the machine's matrix rate that ours reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from training_steps import FORMS, PlainGPT, Shape, litgpt, products, trainer

STEPS = 2  # a round
SHAPE = Shape(vocab_size=4096, d=128, length=256, blocks=4, heads=4, hidden=512, sequences=8)
SHARE = "ratio: share of the matrix rate that ours reaches"


pytestmark = pytest.mark.usefixtures("one_thread")


def ours(form: str) -> Callable[[], object]:
    model = SHAPE.ours(form)
    return repeated(trainer(model, model.loss, SHAPE.batch()))


def plain_gpt() -> Callable[[], object]:
    model = PlainGPT(**SHAPE.sizes)
    return repeated(trainer(model, model.loss, SHAPE.batch()))


def lit_gpt() -> Callable[[], object]:
    pytest.importorskip("litgpt", reason="LitGPT is not installed: see training_steps")
    return repeated(trainer(*litgpt(SHAPE), SHAPE.batch()))


def repeated(step: Callable[[], object]) -> Callable[[], object]:
    return lambda: [step() for _ in range(STEPS)]


CASES = [
    # form, what, how it is made ready, note
    ("GPT-2", "plain step", plain_gpt, ""),
    ("Llama", "LitGPT", lit_gpt, ""),
    *[
        (form, "products of matrices", partial(products, STEPS * SHAPE.flops(form)), SHARE)
        for form in FORMS
    ],
]


@pytest.mark.parametrize(("form", "what", "make", "note"), CASES)
def test_training(
    beside: Callable[..., None],
    form: str,
    what: str,
    make: Callable[[], Callable[[], object]],
    note: str,
) -> None:
    beside(
        f"training, {form}",
        ours(form),
        what,
        make(),
        5,
        note,
        unit="tokens a second",
        work=STEPS * SHAPE.tokens,
        n=STEPS * SHAPE.tokens,
        vocab_size=SHAPE.vocab_size,
    )
