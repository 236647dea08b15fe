"""A linear layer, a scale per column and a softmax over the rows."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.scale = nn.Parameter(1.0 + torch.randn(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x) * self.scale, dim=-1)


def get_inputs():
    return [torch.randn(1024, 128)]


def get_init_inputs():
    return [128, 512]
