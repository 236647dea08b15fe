"""Pointwise operators with row and column broadcasting: gelu(x * scale + bias) * gate."""

import torch
import torch.nn as nn
import torch.nn.functional as F

rows, columns = 1024, 4096


class Model(nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(columns))
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return F.gelu(x * self.scale + self.bias, approximate="tanh") * torch.sigmoid(gate)


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(rows, 1)]


def get_init_inputs():
    return [columns]
