"""Scaled scores, a mask per key, and a softmax: the middle of an attention layer written out."""

import torch
import torch.nn as nn

batch, heads, queries, keys = 4, 8, 128, 256


class Model(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.scale = width**-0.5

    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = scores * self.scale
        return torch.softmax(scores.masked_fill(mask, -1e4), dim=-1)


def get_inputs():
    mask = torch.rand(batch, 1, 1, keys) < 0.3
    mask[..., 0] = False
    return [8.0 * torch.randn(batch, heads, queries, keys), mask]


def get_init_inputs():
    return [64]
