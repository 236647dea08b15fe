"""Max pooling with overlapping windows and padding."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, kernel: int, stride: int, padding: int):
        super().__init__()
        self.pool = nn.MaxPool2d(kernel, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def get_inputs():
    return [torch.randn(4, 64, 112, 112)]


def get_init_inputs():
    return [3, 2, 1]
