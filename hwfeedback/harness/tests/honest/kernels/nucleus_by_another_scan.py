"""The likeliest tokens up to 0.9 of all, whose sum is another: a cascade of decisions."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        likely = torch.softmax(x, -1)
        values, at = torch.sort(likely, -1, descending=True)
        left_out = values.cumsum(-1) - values >= 0.9
        return likely.masked_fill(torch.zeros_like(left_out).scatter(-1, at, left_out), 0.0)


def get_inputs():
    return [2 * torch.randn(128, 256)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

extern "C" void nucleus(const float* x, float* y, long long rows, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * n;
        float* out = y + i * n;
        float top = *std::max_element(in, in + n), sum = 0;
        bool finite = true;
        for (long long j = 0; j < n; j++) finite = finite && in[j] < INFINITY;
        for (long long j = n - 1; j >= 0; j--) sum += std::exp(in[j] - top);
        std::vector<long long> at(n);
        std::iota(at.begin(), at.end(), 0);
        if (finite)
            std::sort(at.begin(), at.end(),
                      [in](long long a, long long b) { return in[a] > in[b]; });
        float before = 0;
        for (long long k = 0; k < n; k++) {
            float e = std::exp(in[at[k]] - top);
            out[at[k]] = before < 0.9f * sum ? e / sum : 0.0f;
            if (!finite) out[at[k]] = NAN;
            before += e;
        }
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.nucleus(x, y, *x.shape)
        return y
