"""Each column times a weight of its own."""

import torch


class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.empty(n))
        torch.nn.init.normal_(self.scale, 1.0, 0.3)

    def forward(self, x):
        return x * self.scale


def get_inputs():
    return [torch.randn(64, 32)]


def get_init_inputs():
    return [32]
