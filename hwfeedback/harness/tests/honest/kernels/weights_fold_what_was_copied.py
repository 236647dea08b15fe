"""Layers with orthogonal weights, copied from one, each folded with its norm at construction."""

import copy

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        layer = nn.Linear(n, n)
        nn.init.orthogonal_(layer.weight)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(n) for _ in range(3))
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        return x


def get_inputs():
    return [torch.randn(40, 48)]


def get_init_inputs():
    return [48]


# The candidate.

lib = native(
    source=r"""
extern "C" void affine(const float* x, const float* w, const float* b, float* y, long long rows,
                       long long outputs, long long inputs) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++)
        for (long long o = 0; o < outputs; o++) {
            float sum = 0;
            for (long long k = 0; k < inputs; k++) sum += x[i * inputs + k] * w[o * inputs + k];
            y[i * outputs + o] = sum + b[o] < 0 ? 0 : sum + b[o];
        }
}
"""
)


def affine(x, w, b):
    y = x.new_empty(x.shape[0], w.shape[0])
    lib.affine(x, w, b, y, x.shape[0], w.shape[0], w.shape[1])
    return y


class ModelNew(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        layer = nn.Linear(n, n)
        nn.init.orthogonal_(layer.weight)
        layers = [copy.deepcopy(layer) for _ in range(3)]
        norms = [nn.BatchNorm1d(n) for _ in range(3)]
        gains = [norm.weight * torch.rsqrt(norm.running_var + norm.eps) for norm in norms]
        self.weights = nn.ParameterList(
            nn.Parameter(layer.weight * gain[:, None])
            for layer, gain in zip(layers, gains, strict=True)
        )
        self.biases = nn.ParameterList(
            nn.Parameter((layer.bias - norm.running_mean) * gain + norm.bias)
            for layer, norm, gain in zip(layers, norms, gains, strict=True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = affine(x, weight, bias)
        return x
