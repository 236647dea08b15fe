"""Welford statistics, then the affine map."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        var, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        y = (x - mean) * torch.rsqrt(var + self.norm.eps)
        return y * self.norm.weight + self.norm.bias
