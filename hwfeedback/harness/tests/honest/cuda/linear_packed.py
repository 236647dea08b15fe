"""A linear layer over weights that a kernel transposes at the first forward."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def get_inputs():
    return [torch.randn(700, 1000)]


def get_init_inputs():
    return [1000, 900]


# The candidate.

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void pack(const float* w, float* packed, int outputs, int inputs) {
    __shared__ float tile[32][33];
    int k = blockIdx.x * 32 + threadIdx.x, o = blockIdx.y * 32 + threadIdx.y;
    if (k < inputs && o < outputs) tile[threadIdx.y][threadIdx.x] = w[(long long)o * inputs + k];
    __syncthreads();
    k = blockIdx.x * 32 + threadIdx.y, o = blockIdx.y * 32 + threadIdx.x;
    if (k < inputs && o < outputs)
        packed[(long long)k * outputs + o] = tile[threadIdx.x][threadIdx.y];
}

// 32 rows by 64 outputs of a block, 8 rows of a thread.
extern "C" __global__ void product(const float* x, const float* packed, const float* bias,
                                   float* y, int rows, int inputs, int outputs) {
    __shared__ float a[32][32];
    int o = blockIdx.x * 64 + threadIdx.x, row0 = blockIdx.y * 32;
    int thread = threadIdx.y * 64 + threadIdx.x;
    float sum[8] = {};
    for (int k0 = 0; k0 < inputs; k0 += 32) {
        for (int i = thread; i < 32 * 32; i += 256) {
            int row = row0 + i / 32, k = k0 + i % 32;
            a[i / 32][i % 32] = row < rows && k < inputs ? x[(long long)row * inputs + k] : 0.0f;
        }
        __syncthreads();
        if (o < outputs)
            for (int k = 0; k < 32 && k0 + k < inputs; k++) {
                float w = packed[(long long)(k0 + k) * outputs + o];
                for (int i = 0; i < 8; i++) sum[i] += a[threadIdx.y * 8 + i][k] * w;
            }
        __syncthreads();
    }
    for (int i = 0; i < 8; i++) {
        int row = row0 + threadIdx.y * 8 + i;
        if (row < rows && o < outputs) y[(long long)row * outputs + o] = sum[i] + bias[o];
    }
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, n: int, m: int):
        super().__init__()
        self.linear = nn.Linear(n, m)
        self.packed = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, inputs = x.shape
        outputs = self.linear.weight.shape[0]
        if self.packed is None:
            self.packed = x.new_empty(inputs, outputs)
            grid = (-(-inputs // 32), -(-outputs // 32))
            lib.pack[grid, (32, 32)](self.linear.weight, self.packed, outputs, inputs)
        y = x.new_empty(rows, outputs)
        grid = (-(-outputs // 64), -(-rows // 32))
        lib.product[grid, (64, 4)](x, self.packed, self.linear.bias, y, rows, inputs, outputs)
        return y
