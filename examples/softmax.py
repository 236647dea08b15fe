"""Softmax over the rows of a matrix."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [3.0 * torch.randn(2048, 1024)]


def get_init_inputs():
    return []
