# structure/right_searchsorted: as it stands
import torch
import torch.nn as nn

from kernelwright import native

# Counts the bounds that are below: without branches, and the same for sorted bounds.
lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void count(const float* b, const float* x, long long* y, int n, int m) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long c = 0;
    for (int j = 0; j < m; j++) c += !(b[j] >= x[i]);
    y[i] = c;
}
""",
)


class ModelNew(nn.Module):
    def forward(self, bounds, x):
        y = torch.empty_like(x, dtype=torch.int64)
        n = x.numel()
        lib.count[-(-n // 128), 128](bounds.contiguous(), x.contiguous(), y, n, bounds.numel())
        return y
