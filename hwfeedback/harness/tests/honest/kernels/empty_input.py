"""One of the inputs, and one of the outputs, has no elements."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([x, y], dim=1) * 2.0, y * 2.0


def get_inputs():
    return [torch.randn(32, 50), torch.randn(32, 0)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
extern "C" void twice(const float* x, float* y, long long n) {
    for (long long i = 0; i < n; i++) y[i] = x[i] + x[i];
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = []
        for part in (x, y):
            out = torch.empty_like(part)
            lib.twice(part, out, part.numel())
            parts.append(out)
        return torch.cat(parts, dim=1), parts[1]
