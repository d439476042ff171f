"""Training steps of equal shape: ours, those of other people, and bare products of matrices.

:class:`PlainGPT` is written from GPT-2's published design (Radford et al. 2019) in the form in
which a single-file trainer has it: one product for queries, keys and values, torch's attention
kernel, LayerNorm, learned positions, GELU, tied, all logits at once. :func:`litgpt` is the step of
the LitGPT package, if that is installed; it brings a heavy stack, of which these are enough::

    pip install --no-deps litgpt lightning lightning-utilities pytorch-lightning torchmetrics \
        jsonargparse typeshed-client docstring-parser importlib_resources
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from staircase_lib.language.configurations import flops_per_token, unallocated
from staircase_lib.language.transformer import Transformer
from staircase_lib.models import initialize_

Step = Callable[[], float]

#: GPT-2's form, and that of Llama and most likely of the paper.
FORMS = {
    "GPT-2": {"positions": "learned", "ffn": "gelu", "tied": True},
    "Llama": {"positions": "rotary", "ffn": "swiglu", "tied": False},
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a model and of a batch for it."""

    vocab_size: int
    d: int
    length: int
    blocks: int
    heads: int
    hidden: int
    sequences: int

    @property
    def sizes(self) -> dict[str, int]:
        """What a model is made of."""
        return {name: value for name, value in vars(self).items() if name != "sequences"}

    @property
    def tokens(self) -> int:
        """That a step predicts."""
        return self.sequences * self.length

    def ours(self, form: str) -> Transformer:
        """Our model, initialized at the ordinary scale."""
        model = Transformer(**self.sizes, **FORMS[form])  # type: ignore[arg-type]
        return initialize_(model, 0.5, torch.Generator().manual_seed(0))  # type: ignore[type-var]

    def flops(self, form: str) -> float:
        """Operations that a step needs, as :func:`flops_per_token` counts them."""
        model = unallocated(Transformer, **self.sizes, **FORMS[form])
        return self.tokens * flops_per_token(model)

    def batch(self, device: str = "cpu") -> Tensor:
        """Tokens drawn at random, shape (sequences, length + 1)."""
        source = torch.Generator().manual_seed(0)
        size = (self.sequences, self.length + 1)
        return torch.randint(self.vocab_size, size, generator=source).to(device)


def seconds(step: Callable[[], object], device: str = "cpu") -> float:
    """That a step takes, until the device has done it."""
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def products(flops: float, device: str = "cpu", size: int = 1024) -> Callable[[], None]:
    """As many operations in products of large square matrices: what the machine can do at best."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def multiply() -> None:
        for _ in range(max(round(flops / (2 * size**3)), 1)):
            torch.mm(a, b)

    return multiply


def trainer(
    model: nn.Module,
    loss: Callable[[Tensor], Tensor],
    tokens: Tensor,
    *,
    lr: float = 1e-3,
    autocast: bool = False,
) -> Step:
    """A step as trainers have it: loss, gradient, clipping, fused AdamW; returns the loss."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )

    def step() -> float:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
            value = loss(tokens)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(value.detach())

    return step


class PlainBlock(nn.Module):
    """Attention and a GELU layer, each behind a LayerNorm; nothing has a bias."""

    def __init__(self, d: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(d, bias=False)
        self.query_key_value = nn.Linear(d, 3 * d, bias=False)
        self.output = nn.Linear(d, d, bias=False)
        self.before_hidden = nn.LayerNorm(d, bias=False)
        self.hidden = nn.Linear(d, hidden, bias=False)
        self.back = nn.Linear(hidden, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.query_key_value(self.before_attention(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        heard = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(heard.transpose(1, 2).flatten(-2))
        return x + self.back(functional.gelu(self.hidden(self.before_hidden(x))))


class PlainGPT(nn.Module):
    """GPT-2 without biases; parameters as torch draws them."""

    def __init__(
        self, vocab_size: int, d: int, length: int, blocks: int, heads: int, hidden: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d)
        self.positions = nn.Embedding(length, d)
        self.blocks = nn.ModuleList(PlainBlock(d, heads, hidden) for _ in range(blocks))
        self.last = nn.LayerNorm(d, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.last(x), self.embedding.weight)

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy of tokens (n, L + 1)."""
        logits = self(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def litgpt(shape: Shape) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """LitGPT's Llama of that shape and the loss of its trainer.

    Raises
    ------
    ImportError
        If LitGPT is not installed.
    """
    from litgpt import GPT, Config
    from litgpt.utils import chunked_cross_entropy

    model = GPT(
        Config(
            block_size=shape.length,
            vocab_size=shape.vocab_size,
            padded_vocab_size=shape.vocab_size,
            n_layer=shape.blocks,
            n_head=shape.heads,
            n_embd=shape.d,
            intermediate_size=shape.hidden,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP",
        )
    )
    return model, lambda tokens: chunked_cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
