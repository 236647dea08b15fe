"""A linear layer, then gelu: the product is the vendor library's, what follows can be fused."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x)) * 1.5


def get_inputs():
    return [torch.randn(512, 256)]


def get_init_inputs():
    return [256, 1024]
