"""Two passes over each group by einsum, folded into one scale and one shift per channel."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, groups: int, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grouped = x.reshape(x.shape[0], self.norm.num_groups, -1)
        count = grouped.shape[-1]
        mean = torch.einsum("ngk->ng", grouped).unsqueeze(-1) / count
        centred = grouped - mean
        var = torch.einsum("ngk,ngk->ng", centred, centred).unsqueeze(-1) / count
        y = (centred * torch.rsqrt(var + self.norm.eps)).reshape(x.shape)
        affine = (1, -1, 1, 1)
        return torch.addcmul(self.norm.bias.view(affine), y, self.norm.weight.view(affine))
