"""Two passes with the sums as products with a vector, and gelu through erf."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        h = x + residual
        part = h.new_full((h.shape[-1], 1), 1.0 / h.shape[-1])
        centred = h - h @ part
        var = (centred * centred) @ part
        y = centred / torch.sqrt(var + self.norm.eps) * self.norm.weight + self.norm.bias
        return 0.5 * y * (1.0 + torch.erf(y * 0.7071067811865476))
