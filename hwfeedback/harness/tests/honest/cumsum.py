"""Running sums within blocks, then the running sum of the blocks added."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        blocks = torch.cumsum(x.unflatten(1, (-1, 64)), dim=2)
        before = F.pad(torch.cumsum(blocks[:, :-1, -1], dim=1), (1, 0))
        return (blocks + before.unsqueeze(2)).flatten(1)
