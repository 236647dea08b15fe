"""Log of a sum of exponentials: a block for each row, with reductions in shared memory."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, dim=-1)


def get_inputs():
    return [torch.randn(2048, 5000) * 4]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
enum { THREADS = 512 };

extern "C" __global__ void logsumexp(const float* x, float* y, int n) {
    __shared__ float part[THREADS];
    int t = threadIdx.x;
    x += (long long)blockIdx.x * n;

    float top = -INFINITY;
    for (int i = t; i < n; i += THREADS) top = fmaxf(top, x[i]);
    part[t] = top;
    __syncthreads();
    for (int w = THREADS / 2; w; w /= 2) {
        if (t < w) part[t] = fmaxf(part[t], part[t + w]);
        __syncthreads();
    }
    top = isinf(part[0]) ? 0.0f : part[0];  // of an infinite one the difference would be NaN
    __syncthreads();

    float sum = 0;
    for (int i = t; i < n; i += THREADS) sum += expf(x[i] - top);
    part[t] = sum;
    __syncthreads();
    for (int w = THREADS / 2; w; w /= 2) {
        if (t < w) part[t] += part[t + w];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = logf(part[0]) + top;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, n = x.shape
        y = x.new_empty(rows)
        lib.logsumexp[rows, 512](x, y, n)
        return y
