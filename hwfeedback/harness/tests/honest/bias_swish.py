"""The quotient y / (1 + exp(-y)) in place of y * sigmoid(y)."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.bias
        y = y / (1.0 + torch.exp(-y))
        return torch.minimum(torch.maximum(y, y.new_tensor(-0.2)), y.new_tensor(2.0))
