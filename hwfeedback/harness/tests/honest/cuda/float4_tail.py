"""ELU over fours of elements, as many as there are, and the rest one by one."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.elu(x)


def get_inputs():
    return [torch.randn(9999991)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
__device__ float elu(float v) { return v > 0 ? v : expm1f(v); }

__global__ void fours(const float* __restrict__ x, float* __restrict__ y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, whole = n / 4;
    if (i < whole) {
        float4 v = reinterpret_cast<const float4*>(x)[i];
        reinterpret_cast<float4*>(y)[i] = make_float4(elu(v.x), elu(v.y), elu(v.z), elu(v.w));
    }
    int rest = 4 * whole + i;
    if (i < n % 4) y[rest] = elu(x[rest]);
}

extern "C" void run(const float* x, float* y, int n, cudaStream_t stream) {
    int blocks = (n / 4 + 255) / 256;
    fours<<<blocks ? blocks : 1, 256, 0, stream>>>(x, y, n);
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.run(x, y, x.numel())
        return y
