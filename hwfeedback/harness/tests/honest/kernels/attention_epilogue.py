"""Attention with the vendor's products; scale, causal mask and softmax in place between them."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) / 4.0
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ v


def get_inputs():
    return [torch.randn(4, 32, 16), torch.randn(4, 32, 16), torch.randn(4, 32, 16)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <math.h>

extern "C" void causal_softmax(float* s, float scale, long long heads, long long n) {
#pragma omp parallel for
    for (long long r = 0; r < heads * n; r++) {
        float* row = s + r * n;
        long long seen = r % n + 1;
        float top = -INFINITY, sum = 0;
        for (long long j = 0; j < seen; j++) {
            row[j] *= scale;
            top = row[j] > top ? row[j] : top;
        }
        for (long long j = 0; j < seen; j++) sum += row[j] = expf(row[j] - top);
        for (long long j = 0; j < seen; j++) row[j] /= sum;
        for (long long j = seen; j < n; j++) row[j] = 0;
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.bmm(q, k.transpose(-2, -1))
        lib.causal_softmax(scores, 0.25, q.shape[0], q.shape[1])
        return torch.bmm(scores, v)
