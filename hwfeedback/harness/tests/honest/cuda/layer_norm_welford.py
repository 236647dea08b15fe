"""Layer norm by Welford's running mean in each thread, merged over warps; far from zero."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def get_inputs():
    return [torch.randn(4096, 2048) + 20]


def get_init_inputs():
    return [2048]


# The candidate.

lib = native(
    language="cuda",
    source=r"""
struct Moments {
    float n, mean, squares;
};

__device__ Moments merged(Moments a, Moments b) {
    float n = a.n + b.n;
    if (n == 0) return a;
    float d = b.mean - a.mean;
    return {n, a.mean + d * (b.n / n), a.squares + b.squares + d * d * (a.n * b.n / n)};
}

__device__ Moments over_warp(Moments m) {
    for (int o = 16; o; o >>= 1) {
        Moments other = {__shfl_xor_sync(~0u, m.n, o), __shfl_xor_sync(~0u, m.mean, o),
                         __shfl_xor_sync(~0u, m.squares, o)};
        m = merged(m, other);
    }
    return m;
}

extern "C" __global__ void layer_norm(const float* x, const float* weight, const float* bias,
                                      float* y, int n, float eps) {
    __shared__ Moments part[32];
    const float* in = x + (long long)blockIdx.x * n;
    float* out = y + (long long)blockIdx.x * n;
    Moments m = {0, 0, 0};
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float d = in[i] - m.mean;
        m.n += 1;
        m.mean += d / m.n;
        m.squares += d * (in[i] - m.mean);
    }
    m = over_warp(m);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
    __syncthreads();
    if (threadIdx.x < 32) {
        m = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : Moments{0, 0, 0};
        m = over_warp(m);
        if (threadIdx.x == 0) part[0] = m;
    }
    __syncthreads();
    float mean = part[0].mean, scale = 1.0f / sqrtf(part[0].squares / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        out[i] = (in[i] - mean) * scale * weight[i] + bias[i];
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        rows, n = x.shape
        lib.layer_norm[rows, 256](x, self.norm.weight, self.norm.bias, y, n, self.norm.eps)
        return y
