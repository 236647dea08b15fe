"""Two LSTM layers over a short sequence, which the built-in Coder declines."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, inputs: int, hidden: int, layers: int):
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.lstm(x)
        return y[:, -1]


def get_inputs():
    return [torch.randn(8, 32, 64)]


def get_init_inputs():
    return [64, 128, 2]
