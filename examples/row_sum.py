"""Sum of absolute values over each row."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sum(torch.abs(x), dim=1)


def get_inputs():
    return [torch.randn(2048, 2048)]


def get_init_inputs():
    return []
