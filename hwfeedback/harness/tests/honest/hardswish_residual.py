"""Hardswish as three cases."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        t = x * self.scale
        gate = (t + 3.0) / 6.0
        y = torch.where(t >= 3.0, t, torch.where(t <= -3.0, torch.zeros_like(t), t * gate))
        return torch.addcmul(y, residual, torch.full((), 0.5))
