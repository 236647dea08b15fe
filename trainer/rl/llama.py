"""The weights of a Llama-like model, laid out to decode by: what is multiplied with the same states
is one product, and heads that share keys are rows of one query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm

KINDS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def unfit(inner: Any) -> str:
    """Returns why a model of transformers cannot be decoded by these weights, empty if it can."""
    config, kind = inner.config, type(inner).__name__
    if kind not in KINDS:
        return f"a {kind} is none of {', '.join(KINDS)}"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        return "its rotary embedding depends on how long a text becomes"
    kinds = getattr(config, "layer_types", None) or (
        ["sliding_attention"] if getattr(config, "sliding_window", None) else []
    )
    if any(k != "full_attention" for k in kinds):
        return "some of its layers do not attend to the whole text"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    first = inner.model.layers[0].self_attn
    turned = 2 * inner.model.rotary_emb.inv_freq.numel()
    if turned != first.head_dim or first.scaling != first.head_dim**-0.5:
        return "its attention turns or scales heads in another way"
    parts = [(layer.self_attn, n) for layer in inner.model.layers for n in ATTENTION]
    parts += [(layer.mlp, n) for layer in inner.model.layers for n in MLP]
    if not all(_is_plain(getattr(of, n)) for of, n in parts):
        return "some of its layers are neither plain linear ones nor such with LoRA"
    ends = type(inner.model.embed_tokens), type(inner.get_output_embeddings())
    if ends != (nn.Embedding, nn.Linear):
        return "its embeddings are adapted"
    if len({p.device for p in inner.parameters()}) > 1:
        return "its weights are on several devices"
    return ""


def _is_plain(module: Any) -> bool:
    """Reports whether a module is a linear layer, with plain adapters of PEFT's LoRA at most."""
    if type(module) is nn.Linear:
        return True
    from peft.tuners.lora import Linear

    if type(module) is not Linear or type(module.base_layer) is not nn.Linear:
        return False
    variants = getattr(module, "lora_variant", {}) or any(module.use_dora.values())
    return not variants and not any(module.lora_bias.values())


@dataclass
class Part:
    """One linear layer: ``weight`` [out, in], ``bias`` [out] or None, and its adapters together:
    ``down`` [rank, in] and ``up`` [rank, out], of rank 0 where there are none.
    """

    weight: Tensor
    bias: Tensor | None
    down: Tensor
    up: Tensor

    @staticmethod
    def of(module: Any) -> Part:
        """Returns the part of a module of transformers or PEFT."""
        base = getattr(module, "base_layer", module)
        weight = base.weight.detach()
        down = [weight.new_zeros(0, weight.shape[1])]
        up = [weight.new_zeros(0, weight.shape[0])]
        if base is not module and not module.disable_adapters and not module.merged:
            for name in module.active_adapters:
                if name in module.lora_A:
                    down.append(module.lora_A[name].weight.detach())
                    up.append(module.lora_B[name].weight.detach().T * module.scaling[name])
        bias = None if base.bias is None else base.bias.detach()
        return Part(weight, bias, torch.cat(down), torch.cat(up))

    def with_outputs(self, shape: tuple[int, int, int]) -> Part:
        """Returns the part with outputs of heads [keys, groups, width] as [groups, keys, width]."""
        bias = None if self.bias is None else _turned(self.bias, 0, shape)
        return Part(_turned(self.weight, 0, shape), bias, self.down, _turned(self.up, 1, shape))

    def with_inputs(self, shape: tuple[int, int, int]) -> Part:
        """Returns the part that takes heads [groups, keys, width] for [keys, groups, width]."""
        return Part(
            _turned(self.weight, 1, shape), self.bias, _turned(self.down, 1, shape), self.up
        )


def _turned(x: Tensor, dim: int, shape: tuple[int, int, int]) -> Tensor:
    return x.unflatten(dim, shape).transpose(dim, dim + 1).flatten(dim, dim + 2)


class Product:
    """Several linear layers of one input as one product. Adapters stay products of their own, as
    the trainer has them: added to weights of bfloat16 a small one would be rounded away.
    """

    def __init__(self, parts: Sequence[Part], dtype: torch.dtype) -> None:
        one = parts[0].weight if len(parts) == 1 else torch.cat([p.weight for p in parts])
        self.weight = one.to(dtype)
        self.bias: Tensor | None = None
        if any(p.bias is not None for p in parts):
            zeros = [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in parts]
            self.bias = torch.cat(zeros).to(dtype)
        down = torch.cat([p.down for p in parts])
        up = down.new_zeros(len(down), len(self.weight))
        row = column = 0
        for p in parts:
            up[row : row + len(p.up), column : column + len(p.weight)] = p.up
            row, column = row + len(p.up), column + len(p.weight)
        self.down, self.up = down.to(dtype), up.to(dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns [n, out] of [n, in]."""
        y = linear(x, self.weight, self.bias)
        return torch.addmm(y, linear(x, self.down), self.up) if len(self.down) else y


class Norm:
    """An RMSNorm, computed in float32."""

    def __init__(self, module: Any) -> None:
        self.weight = module.weight.detach().float()
        self.eps = float(module.variance_epsilon)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns float32 of the shape of x."""
        return rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class Layer:
    """One layer: ``qkv`` gives queries as [groups, keys], then keys and values."""

    def __init__(self, layer: Any, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
        q, k, v, o = (Part.of(getattr(layer.self_attn, n)) for n in ATTENTION)
        gate, up, down = (Part.of(getattr(layer.mlp, n)) for n in MLP)
        self.before, self.after = Norm(layer.input_layernorm), Norm(layer.post_attention_layernorm)
        self.qkv = Product([q.with_outputs(shape), k, v], dtype)
        self.out = Product([o.with_inputs(shape)], dtype)
        self.gate_up, self.down = Product([gate, up], dtype), Product([down], dtype)
        own = layer.self_attn
        self.of_heads = (Norm(own.q_norm), Norm(own.k_norm)) if hasattr(own, "q_norm") else None


class Weights:
    """A model's weights as they are now; products in ``dtype``, all else in float32. There are
    ``keys`` heads of keys, each of ``groups`` queries, all of one ``width``.
    """

    def __init__(self, inner: Any, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.width = int(inner.model.layers[0].self_attn.head_dim)
        self.keys = int(inner.config.num_key_value_heads)
        self.groups = int(inner.config.num_attention_heads) // self.keys
        shape = (self.keys, self.groups, self.width)
        self.embedding = inner.model.embed_tokens.weight.detach()
        self.layers = [Layer(layer, shape, dtype) for layer in inner.model.layers]
        self.norm = Norm(inner.model.norm)
        head = inner.get_output_embeddings()
        self.head = head.weight.detach().float()
        self.head_bias = None if head.bias is None else head.bias.detach().float()
        self.rotary = inner.model.rotary_emb

    def rotations(self, length: int) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines [length, width] of places, float32; the sine of the first half
        is negative, as what it is multiplied with.
        """
        device = self.embedding.device
        places = torch.arange(length, device=device)[None]
        cos, sin = self.rotary(torch.zeros(1, device=device), places)
        half = self.width // 2
        return cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)

    def logits(self, states: Tensor) -> Tensor:
        """Returns logits [n, vocabulary] of hidden states, in float32 as the trainer has them."""
        return linear(self.norm(states), self.head, self.head_bias)
