"""Values and indices sorted downwards by std::sort, which is not stable."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sort(x, dim=-1, descending=True)


def get_inputs():
    return [torch.randint(0, 30, (24, 100)).float()]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <algorithm>
#include <cmath>
#include <numeric>

extern "C" void sort_rows(const float* x, float* values, long long* indices, long long rows,
                          long long n) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * n;
        long long* order = indices + i * n;
        std::iota(order, order + n, 0);
        std::sort(order, order + n, [in](long long a, long long b) {
            return std::isnan(in[a]) ? !std::isnan(in[b]) : in[a] > in[b];
        });
        for (long long j = 0; j < n; j++) values[i * n + j] = in[order[j]];
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.empty_like(x)
        indices = torch.empty(x.shape, dtype=torch.int64)
        lib.sort_rows(x, values, indices, *x.shape)
        return values, indices
