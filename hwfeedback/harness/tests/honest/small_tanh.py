"""tanh through expm1 of a number that is never positive."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        t = torch.expm1(-2.0 * torch.abs(x))
        tanh = torch.copysign(t / (t + 2.0), x)
        return torch.addcmul(x, tanh, y)
