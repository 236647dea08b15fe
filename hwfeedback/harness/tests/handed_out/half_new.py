import torch

from kernelwright import native

lib = native(
    source=r"""
#include <cstdint>
extern "C" void above(const uint16_t* x, uint16_t* y, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < n; i++) {
        bool nan = (x[i] & 0x7fff) > 0x7c00;
        y[i] = !nan && (x[i] & 0x8000) ? 0 : x[i];
    }
}
"""
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.above(x, y, x.numel())
        return y
