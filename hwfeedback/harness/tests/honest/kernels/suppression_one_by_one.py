"""Boxes that overlap a better one are left out, whose overlap has no quotient: a cascade."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, high = x[:, :2], x[:, :2] + x[:, 2:4].abs() + 0.1
        area = (high - low).prod(-1)
        sides = torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)
        common = sides.clamp_min(0.0).prod(-1)
        order = torch.argsort(x[:, 4], descending=True)
        over = (common / (area[:, None] + area - common) > 0.3)[order][:, order]
        keep = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for i in range(len(x) - 1):
            keep[i + 1 :] &= ~(over[i, i + 1 :] & keep[i])
        return torch.zeros_like(keep).scatter(0, order, keep)


def get_inputs():
    return [torch.randn(40, 5)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    source=r"""
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

extern "C" void suppress(const float* x, bool* keep, long long n) {
    std::vector<long long> at(n);
    std::iota(at.begin(), at.end(), 0);
    std::stable_sort(at.begin(), at.end(), [x](long long a, long long b) {
        float u = x[a * 5 + 4], v = x[b * 5 + 4];
        return std::isnan(u) ? !std::isnan(v) : u > v;
    });
    auto high = [x](long long i, int d) {
        return x[i * 5 + d] + std::fabs(x[i * 5 + d + 2]) + 0.1f;
    };
    auto area = [&](long long i) {
        return (high(i, 0) - x[i * 5]) * (high(i, 1) - x[i * 5 + 1]);
    };
    std::vector<long long> kept;
    for (long long i : at) {
        keep[i] = true;
        for (long long k : kept) {
            float common = 1;
            for (int d = 0; d < 2; d++) {
                float h = std::fmin(high(i, d), high(k, d));
                float side = h - std::fmax(x[i * 5 + d], x[k * 5 + d]);
                common *= side > 0 ? side : 0;
            }
            keep[i] = keep[i] && !(common > 0.3f * (area(i) + area(k) - common));
        }
        if (keep[i]) kept.push_back(i);
    }
}
"""
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keep = torch.empty(len(x), dtype=torch.bool)
        lib.suppress(x, keep, len(x))
        return keep
