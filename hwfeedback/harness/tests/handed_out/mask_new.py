import torch

from kernelwright import native

lib = native(
    source=r"""
extern "C" void masked(const float* x, const bool* mask, float* y, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < n; i++) y[i] = mask[i] ? 0 : x[i];
}
"""
)


class ModelNew(torch.nn.Module):
    def forward(self, x, mask):
        y = torch.empty_like(x)
        lib.masked(x, mask, y, x.numel())
        return y
