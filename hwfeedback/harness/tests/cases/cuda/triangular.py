# structure/right_triangular: as it stands
import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void product(const float* a, const float* b, float* y, int n) {
    int i = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= n) return;
    float s = 0;
    for (int k = j; k <= i; k++) s += a[i * n + k] * b[k * n + j];
    y[i * n + j] = s;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty_like(b)
        n = b.shape[0]
        lib.product[(-(-n // 128), n), 128](a.contiguous(), b.contiguous(), y, n)
        return y
