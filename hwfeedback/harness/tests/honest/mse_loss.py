"""The dot product of the difference with itself."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        d = (prediction - target).flatten()
        return torch.dot(d, d) / d.numel()
