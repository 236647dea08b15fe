"""What is above zero, in half precision."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(64, 32).half()]


def get_init_inputs():
    return []
