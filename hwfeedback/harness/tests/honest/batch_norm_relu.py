"""The norm folded into one scale and one shift per channel."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.norm.weight / torch.sqrt(self.norm.running_var + self.norm.eps)
        shift = self.norm.bias - self.norm.running_mean * scale
        y = torch.addcmul(shift.view(1, -1, 1, 1), x, scale.view(1, -1, 1, 1))
        return torch.clamp(y, min=0.0)
