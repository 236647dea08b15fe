"""Swish as a quotient, the mean as a product with a vector."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x / (1.0 + torch.exp(-x))).flatten(2)
        return torch.matmul(y, y.new_full((y.shape[2],), 1.0 / y.shape[2]))
