"""Online softmax over four parts of a row, rescaled as the maximum grows."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top = x.new_full((*x.shape[:-1], 1), -torch.inf)
        total = x.new_zeros((*x.shape[:-1], 1))
        for part in torch.chunk(x, 4, dim=-1):
            higher = torch.maximum(top, part.amax(dim=-1, keepdim=True))
            total = total * torch.exp(top - higher) + torch.exp(part - higher).sum(-1, keepdim=True)
            top = higher
        return torch.exp(x - top) / total
