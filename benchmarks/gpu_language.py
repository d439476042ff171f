"""Throughput and numerics of the paper's model on one GPU, in less than four minutes.

    python benchmarks/gpu_language.py --output gpu_language.json

It checks first, on a small model in float32 on the processor and in bfloat16 on the GPU, that the
losses and gradients agree, compiled and not, and that the loss in chunks is that of all logits.
Then it trains ``paper_700m`` on random tokens, as long as ``--seconds`` says, compiled and in
bfloat16, in parts as large as fit, and tells tokens a second and the share of the rate that the GPU
reaches on large bfloat16 products. With ``--toy`` the same runs on a processor, at a size that
takes seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from training_steps import products, seconds, trainer

from staircase_lib.language.configurations import flops_per_token, paper_700m, tiny
from staircase_lib.language.transformer import Transformer
from staircase_lib.models import initialize_

#: Largest relative difference of a gradient in bfloat16, whose rounding is 0.4 %.
TOLERANCE = 0.05


def started(model: Transformer, gamma: float = 0.5) -> Transformer:
    return initialize_(model, gamma, torch.Generator().manual_seed(0))  # type: ignore[type-var]


def gradients(model: Transformer, tokens: torch.Tensor, *, autocast: bool, chunk: int) -> Any:
    """Loss, and gradients as float64 on the processor."""
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=autocast):
        loss = model.loss(tokens, chunk=chunk)
    found = torch.autograd.grad(loss, list(model.parameters()))
    return float(loss.detach()), [gradient.double().cpu() for gradient in found]


def numerics(device: str, *, compiled: bool) -> list[dict[str, Any]]:
    """How far losses and gradients on the device are from those of all logits in float32.

    One row a way: relative difference of the loss, and the largest one of a gradient's norm.

    Raises
    ------
    ArithmeticError
        If one is larger than rounding explains.
    """
    source = torch.Generator().manual_seed(1)
    tokens = torch.randint(4096, (4, 129), generator=source)
    model = started(tiny(4096, 128, d=128, hidden=512))
    logits = torch.log_softmax(model.logits(tokens[:, :-1]).double(), -1)
    whole = -logits.gather(-1, tokens[:, 1:, None]).mean()
    expected = torch.autograd.grad(whole, list(model.parameters()))
    rows = []
    for way in (
        ("float32", "bfloat16", "bfloat16, compiled") if compiled else ("float32", "bfloat16")
    ):
        there = started(tiny(4096, 128, d=128, hidden=512)).to(device)
        if "compiled" in way:
            there.compile_parts()
        loss, found = gradients(
            there, tokens.to(device), autocast=way.startswith("bfloat16"), chunk=200
        )
        apart = [
            float((a - b).norm() / b.norm())
            for a, b in zip(found, (g.double() for g in expected), strict=True)
        ]
        difference = abs(loss / float(whole.detach()) - 1)
        rows.append({"way": way, "loss": difference, "gradient": max(apart)})
        if not max(*apart, difference) < (1e-2 if way == "float32" else TOLERANCE):
            raise ArithmeticError(f"{way}: gradients differ by {max(apart):.1e}, loss {loss}.")
    return rows


def throughput(
    model: Transformer, device: str, sequences: int, chunk: int, limit: float, *, compiled: bool
) -> dict[str, Any]:
    """Tokens a second of whole steps of training, and their share of the matrix rate.

    Steps and products of as many operations take turns until the time is over; reported are
    medians. If memory is short, half as many sequences are tried.
    """
    model = model.to(device)
    if compiled:
        model.compile_parts()
    while True:
        source = torch.Generator().manual_seed(2)
        tokens = torch.randint(model.vocab_size, (sequences, model.length + 1), generator=source)
        loss = partial(model.loss, chunk=chunk)
        step = trainer(model, loss, tokens.to(device), lr=1e-4, autocast=True)
        try:
            losses = [step() for _ in range(2)]  # compiles, and fills AdamW's averages
            break
        except torch.OutOfMemoryError:
            if sequences == 1:
                raise
            model.zero_grad(set_to_none=True)
            del step
            torch.cuda.empty_cache()
            sequences //= 2
    count = sequences * model.length
    needed = count * flops_per_token(model)
    multiply = products(needed, device, 8192 if device == "cuda" else 512)
    multiply()
    times, bare = [], []
    begun = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begun < limit:
        times.append(seconds(lambda: losses.append(step()), device))
        bare.append(seconds(multiply, device))
    if not np.isfinite(losses).all() or losses[-1] >= losses[0]:
        raise ArithmeticError(f"The same batch again and again should be learned: {losses}.")
    median = float(np.median(times))
    return {
        "sequences": sequences,
        "length": model.length,
        "steps": len(times),
        "tokens_per_second": count / median,
        "low": count / max(times),
        "high": count / min(times),
        "matrix_flops_per_second": needed / float(np.median(bare)),
        "share": float(np.median(np.array(bare) / np.array(times))),
        "losses": losses,
        "peak_memory_gb": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="Throughput and numerics on one GPU.")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="of training (default: 60)")
    parser.add_argument("--sequences", type=int, default=16, help="at a time (default: 16)")
    parser.add_argument("--chunk", type=int, default=4096, help="of the loss (default: 4096)")
    parser.add_argument("--toy", action="store_true", help="small, and on any machine")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.toy:
        parser.error("no GPU was found; --toy runs a small model on the processor")
    torch.manual_seed(0)
    compiled = not options.toy
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "numerics": numerics(device, compiled=compiled),
    }
    print(json.dumps(found, indent=1), flush=True)  # what stands, should the rest fail
    model = started(tiny(500, 32) if options.toy else paper_700m(), 0.5)
    sequences = min(options.sequences, 4) if options.toy else options.sequences
    found |= throughput(model, device, sequences, options.chunk, options.seconds, compiled=compiled)
    print(
        f"{found['tokens_per_second']:,.0f} tokens a second, {found['share']:.0%} of the matrix "
        f"rate of {found['matrix_flops_per_second'] / 1e12:.3g} TFLOP a second"
    )
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    main()
