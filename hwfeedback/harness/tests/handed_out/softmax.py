"""Softmax over the last dimension."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)


def get_inputs():
    return [torch.randn(32, 96)]


def get_init_inputs():
    return []
