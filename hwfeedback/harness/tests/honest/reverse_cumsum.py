"""Running sums within blocks by doubling steps, then over the blocks; the data is not flipped."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        block = 64
        sums = x.unflatten(1, (-1, block))
        step = 1
        while step < block:
            sums = sums + F.pad(sums[..., step:], (0, step))
            step *= 2
        after = sums[:, 1:, 0].flip(1).cumsum(dim=1).flip(1)
        return (sums + F.pad(after, (0, 1)).unsqueeze(2)).flatten(1)
