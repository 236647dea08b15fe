"""The convolution as a matrix product over unfolded windows."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = F.unfold(x, self.conv.kernel_size, padding=1)
        y = self.conv.weight.flatten(1) @ windows + self.conv.bias.unsqueeze(1)
        return y.unflatten(2, x.shape[2:])
