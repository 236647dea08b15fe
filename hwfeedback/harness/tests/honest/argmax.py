"""The greatest of each part of a row, then the greatest of the parts."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.unflatten(-1, (-1, 64))
        values, inner = parts.max(dim=-1)
        outer = values.argmax(dim=-1, keepdim=True)
        return (outer * 64 + inner.gather(-1, outer)).squeeze(-1)
