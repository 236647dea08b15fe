"""Average pooling over 2 x 2 windows."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, kernel: int):
        super().__init__()
        self.pool = nn.AvgPool2d(kernel)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.randn(8, 64, 64, 64)]


def get_init_inputs():
    return [2]
