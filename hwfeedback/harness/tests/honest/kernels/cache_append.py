"""Caches that are inputs: each call writes one position and attends to all up to it."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, q, k, v, keys, values, position: int):
        keys[:, position] = k
        values[:, position] = v
        s = torch.einsum("bd,bnd->bn", q, keys[:, : position + 1]) / q.shape[-1] ** 0.5
        return torch.einsum("bn,bnd->bd", s.softmax(-1), values[:, : position + 1])


def get_inputs():
    new = [torch.randn(4, 32) for _ in range(3)]
    return [*new, torch.randn(4, 48, 32), torch.randn(4, 48, 32), 20]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <cmath>
#include <vector>

extern "C" void attend(const float* q, const float* k, const float* v, float* keys, float* values,
                       float* y, long long b, long long n, long long d, long long at) {
    for (long long i = 0; i < b; i++) {
        float *ks = keys + i * n * d, *vs = values + i * n * d;
        for (long long j = 0; j < d; j++) {
            ks[at * d + j] = k[i * d + j];
            vs[at * d + j] = v[i * d + j];
        }
        std::vector<double> s(at + 1);
        double top = -INFINITY, z = 0;
        for (long long p = 0; p <= at; p++) {
            for (long long j = 0; j < d; j++) s[p] += (double)q[i * d + j] * ks[p * d + j];
            s[p] /= std::sqrt((double)d);
            if (!(s[p] <= top)) top = s[p];
        }
        for (auto& t : s) z += t = std::exp(t - top);
        for (long long j = 0; j < d; j++) {
            double sum = 0;
            for (long long p = 0; p <= at; p++) sum += s[p] / z * vs[p * d + j];
            y[i * d + j] = (float)sum;
        }
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, q, k, v, keys, values, position: int):
        y = torch.empty_like(q)
        b, n, d = keys.shape
        lib.attend(
            q.contiguous(), k.contiguous(), v.contiguous(), keys, values, y, b, n, d, position
        )
        return y
