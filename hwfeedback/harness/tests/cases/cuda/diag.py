# structure/right_diag: as it stands
import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void scaled(const float* a, const float* b, float* y, int m) {
    int i = blockIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (j < m) y[i * m + j] = a[i] * b[i * m + j];
}
""",
)


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty_like(b)
        n, m = b.shape
        lib.scaled[(-(-m // 256), n), 256](a, b.contiguous(), y, m)
        return y
