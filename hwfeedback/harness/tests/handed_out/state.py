"""Adds to each row what the calls before have summed."""

import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("total", torch.zeros(width))

    def forward(self, x):
        self.total.add_(x.sum(0))
        return x + self.total


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return [32]
