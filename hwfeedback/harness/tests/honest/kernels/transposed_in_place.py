"""get_inputs() gives a transposed view and a channels-last image; both are read as they lie."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.exp(x).sum(0), image.mean((2, 3))


def get_inputs():
    image = torch.randn(2, 5, 7, 9).contiguous(memory_format=torch.channels_last)
    return [torch.randn(96, 33).t(), image]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" void sums(const float* x, float* y, long long rows, long long n) {
    for (long long r = 0; r < rows; r++) {
        double sum = 0;
        for (long long i = 0; i < n; i++) sum += exp((double)x[r * n + i]);
        y[r] = (float)sum;
    }
}

extern "C" void means(const float* x, float* y, long long batch, long long area, long long n) {
    for (long long b = 0; b < batch; b++)
        for (long long c = 0; c < n; c++) {
            double sum = 0;
            for (long long i = 0; i < area; i++) sum += x[(b * area + i) * n + c];
            y[b * n + c] = (float)(sum / area);
        }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, channels, height, width = image.shape
        sums, means = x.new_empty(x.shape[1]), image.new_empty(batch, channels)
        lib.sums(x.t(), sums, x.shape[1], x.shape[0])
        lib.means(image.permute(0, 2, 3, 1), means, batch, height * width, channels)
        return sums, means
