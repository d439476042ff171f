"""Our Transformers as checkpoints that other programs read.

With rotary positions, SwiGLU and an RMS norm before each path, our model is Llama's
(arXiv:2302.13971) but for names: weights are stored there as (out, in), and gains of norms are
parameters. A series of such folders, one a step, is what
:func:`staircase_lib.language.series.open_series` reads.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from staircase_lib.language.folders import write_atomically
from staircase_lib.language.transformer import ROTARY_BASE, Transformer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["save_as_llama"]

_NAMES = {
    "W_Q": "self_attn.q_proj",
    "W_K": "self_attn.k_proj",
    "W_V": "self_attn.v_proj",
    "W_O": "self_attn.o_proj",
    "W_gate": "mlp.gate_proj",
    "W_in": "mlp.up_proj",
    "W_out": "mlp.down_proj",
    "g_A": "input_layernorm",
    "g_F": "post_attention_layernorm",
}


def save_as_llama(
    model: Transformer,
    folder: str | os.PathLike[str],
    *,
    run: int | None = None,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Write a model as ``config.json`` and ``model.safetensors`` in the layout of the hub.

    Parameters
    ----------
    model : Transformer
        With rotary positions, SwiGLU and the final norm.
    folder : path
        Of this checkpoint, for instance ``series/step512``; made if it is not there.
    run : int, optional
        Which run of a batch of runs.
    tokenizer : tokenizers.Tokenizer, optional
        Saved beside it as ``tokenizer.json``.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ValueError
        If Llama has no such model, or the run is not one of the batch.
    """
    from safetensors.torch import save

    settings = model.settings
    wanted = {"positions": "rotary", "ffn": "swiglu", "final_norm": True}
    other = {name: settings[name] for name in wanted if settings[name] != wanted[name]}
    if other:
        raise ValueError(f"model: expected {wanted}, as Llama has it, got {other}.")
    if run not in ((None,) if model.runs is None else range(model.runs)):
        raise ValueError(f"run: expected one of the model's {model.runs} runs, got {run!r}.")

    def of_run(tensor: Tensor) -> Tensor:
        return (tensor if run is None else tensor[run]).detach().float().cpu()

    tensors: dict[str, Tensor] = {
        "model.embed_tokens.weight": of_run(model.W_E),
        "model.norm.weight": of_run(model.g_U),
    }
    if not settings["tied"]:
        tensors["lm_head.weight"] = of_run(model.readout).T
    for number, block in enumerate(model.blocks):
        for ours, theirs in _NAMES.items():
            tensor = of_run(getattr(block, ours))
            name = f"model.layers.{number}.{theirs}.weight"
            tensors[name] = tensor.T if tensor.ndim == 2 else tensor
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.d,
        "intermediate_size": model.hidden,
        "num_hidden_layers": len(model.blocks),
        "num_attention_heads": settings["heads"],
        "num_key_value_heads": settings["heads"],
        "max_position_embeddings": model.length,
        "rms_norm_eps": model.epsilon,
        "rope_theta": ROTARY_BASE,
        "hidden_act": "silu",
        "tie_word_embeddings": settings["tied"],
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
    }
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    stored = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_atomically(place / "model.safetensors", save(stored, {"format": "pt"}))
    if tokenizer is not None:
        write_atomically(place / "tokenizer.json", tokenizer.to_str().encode())
    write_atomically(place / "config.json", (json.dumps(config, indent=1) + "\n").encode())
    return place
