"""Each column times a weight, and all by a factor that is given by keyword alone."""

import torch


class Model(torch.nn.Module):
    def __init__(self, n, *, eps=0.5):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(n) + eps)

    def forward(self, x, shift=0.0, *, factor=2.0):
        return x * self.scale * factor + shift


def get_inputs():
    return [torch.randn(64, 32)]


def get_init_inputs():
    return [32]
