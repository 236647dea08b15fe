"""The sum of each row."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x.sum(-1)


def get_inputs():
    return [torch.randn(64, 100)]


def get_init_inputs():
    return []
