"""The sum of shifted slices."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, kernel: int):
        super().__init__()
        self.kernel = kernel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k = self.kernel
        height, width = x.shape[2] // k, x.shape[3] // k
        x = x[:, :, : height * k, : width * k]
        total = sum(x[:, :, i::k, j::k] for i in range(k) for j in range(k))
        return total / (k * k)
