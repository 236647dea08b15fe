"""What is above zero, and what is below."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x.clamp(min=0), x.clamp(max=0)


def get_inputs():
    return [torch.randn(64, 32)]


def get_init_inputs():
    return []
