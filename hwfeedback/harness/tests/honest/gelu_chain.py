"""gelu and the gate by their formulas, from exp and tanh."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(columns))
        self.bias = nn.Parameter(torch.zeros(columns))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        u = torch.addcmul(self.bias, x, self.scale)
        inner = 0.7978845608028654 * (u + 0.044715 * u * u * u)
        return 0.5 * u * (1.0 + torch.tanh(inner)) / (1.0 + torch.exp(-gate))
