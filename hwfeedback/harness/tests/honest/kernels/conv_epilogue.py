"""The vendor's convolution without its bias; bias, hardswish and scale in one pass in place."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, channels: int, outputs: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.hardswish(self.conv(x)) * 0.7


def get_inputs():
    return [torch.randn(2, 6, 16, 16)]


def get_init_inputs():
    return [6, 10]


# The candidate.

lib = native(
    source=r"""
extern "C" void epilogue(float* y, const float* bias, long long planes, long long channels,
                         long long pixels) {
#pragma omp parallel for
    for (long long p = 0; p < planes; p++)
        for (long long j = p * pixels; j < (p + 1) * pixels; j++) {
            float v = y[j] + bias[p % channels];
            float gate = v + 3.0f;
            gate = gate < 0 ? 0 : gate > 6 ? 6 : gate;
            y[j] = v * gate * (1.0f / 6.0f) * 0.7f;
        }
}
"""
)


class ModelNew(nn.Module):
    def __init__(self, channels: int, outputs: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.conv2d(x, self.conv.weight, padding=1)
        images, channels, height, width = y.shape
        lib.epilogue(y, self.conv.bias, images * channels, channels, height * width)
        return y
