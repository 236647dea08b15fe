"""Zero wherever a mask says so."""

import torch


class Model(torch.nn.Module):
    def forward(self, x, mask):
        return x.masked_fill(mask, 0.0)


def get_inputs():
    return [torch.randn(64, 32), torch.rand(64, 32) < 0.5]


def get_init_inputs():
    return []
