"""A selection in place of masked_fill, and softmax by its formula with the sum as an einsum."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.root = width**0.5

    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = torch.where(mask, scores.new_tensor(-1e4), scores / self.root)
        e = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
        return e / torch.einsum("bhqk->bhq", e).unsqueeze(-1)
