"""A convolution, an extra bias per channel, ReLU and max pooling."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel)
        self.bias = nn.Parameter(0.5 * torch.randn(outputs, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(torch.relu(self.conv(x) + self.bias), 2)


def get_inputs():
    return [torch.randn(8, 3, 66, 66)]


def get_init_inputs():
    return [3, 32, 3]
