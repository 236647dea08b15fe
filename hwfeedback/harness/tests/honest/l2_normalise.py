"""The squared length as an einsum of the row with itself."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = torch.sqrt(torch.einsum("ij,ij->i", x, x))
        return x * (1.0 / torch.clamp(length, min=1e-12)).unsqueeze(1)
