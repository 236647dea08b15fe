"""Sums of eight parts of the dimension, then the sum of the parts."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = sum(part.sum(dim=1) for part in torch.chunk(x, 8, dim=1))
        return total / x.shape[1]
