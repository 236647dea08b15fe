"""A tuple, a dict and a list within each other, filled by two kernels of one source."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> dict:
        top, at = x.max(dim=-1)
        return {"top": (top, at), "rest": [x * 2 - 1, {"positive": x >= 0}]}


def get_inputs():
    return [torch.randn(2048, 3000)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
__device__ bool before(float a, long long i, float b, long long j) {
    if (isnan(a) || isnan(b)) return isnan(a) && (!isnan(b) || i < j);
    return a > b || (a == b && i < j);
}

// A warp for each row.
__global__ void largest(const float* x, float* top, long long* at, int rows, int n) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float* in = x + (long long)row * n;
    float best = -INFINITY;
    long long place = n;
    for (int i = lane; i < n; i += 32)
        if (before(in[i], i, best, place)) best = in[i], place = i;
    for (int o = 16; o; o >>= 1) {
        float v = __shfl_xor_sync(~0u, best, o);
        long long i = __shfl_xor_sync(~0u, place, o);
        if (before(v, i, best, place)) best = v, place = i;
    }
    if (lane == 0) top[row] = best, at[row] = place;
}

__global__ void each(const float* x, float* y, bool* positive, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * 2 - 1, positive[i] = x[i] >= 0;
}

extern "C" {

void maxima(const float* x, float* top, long long* at, int rows, int n, cudaStream_t stream) {
    largest<<<(rows + 7) / 8, 256, 0, stream>>>(x, top, at, rows, n);
}

void elements(const float* x, float* y, bool* positive, long long n, cudaStream_t stream) {
    each<<<(n + 255) / 256, 256, 0, stream>>>(x, y, positive, n);
}

}
""",
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> dict:
        rows, n = x.shape
        top, at = x.new_empty(rows), x.new_empty(rows, dtype=torch.int64)
        y, positive = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
        lib.maxima(x, top, at, rows, n)
        lib.elements(x, y, positive, x.numel())
        return {"rest": (y, {"positive": positive}), "top": [top, at]}
