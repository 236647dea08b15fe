"""Mean over the middle dimension: a reduction whose elements are far apart in memory."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mean(x, dim=1)


def get_inputs():
    return [torch.randn(16, 1024, 512)]


def get_init_inputs():
    return []
