"""The scale folded into weight and bias, softmax by its formula."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.scale = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.linear.weight * self.scale.unsqueeze(1)
        u = torch.addmm(self.linear.bias * self.scale, x, weight.t())
        e = torch.exp(u - u.amax(dim=-1, keepdim=True))
        return e / e.sum(dim=-1, keepdim=True)
