"""Statistics of each image row, joined by the parallel form of Welford's method."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.InstanceNorm2d(channels, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row_var, row_mean = torch.var_mean(x, dim=3, correction=0, keepdim=True)
        between, mean = torch.var_mean(row_mean, dim=2, correction=0, keepdim=True)
        var = row_var.mean(dim=2, keepdim=True) + between
        y = (x - mean) / torch.sqrt(var + self.norm.eps)
        return y * self.norm.weight.view(1, -1, 1, 1) + self.norm.bias.view(1, -1, 1, 1)
