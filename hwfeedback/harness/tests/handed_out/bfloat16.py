"""Half of each number, in bfloat16."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 0.5


def get_inputs():
    return [torch.randn(64, 32).bfloat16()]


def get_init_inputs():
    return []
