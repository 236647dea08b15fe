"""The product in two halves of its inner dimension, gelu through erf."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.linear.weight
        half = w.shape[1] // 2
        u = x[:, :half] @ w[:, :half].t() + x[:, half:] @ w[:, half:].t() + self.linear.bias
        return 0.75 * u * (1.0 + torch.erf(u * 0.7071067811865476))
