import torch

from kernelwright import native

lib = native(
    source=r"""
#include <cstdint>
#include <cstring>
extern "C" void halved(const uint16_t* x, uint16_t* y, long long n) {
#pragma omp parallel for
    for (long long i = 0; i < n; i++) {
        uint32_t wide = (uint32_t)x[i] << 16;
        float value;
        std::memcpy(&value, &wide, 4);
        value *= 0.5f;
        std::memcpy(&wide, &value, 4);
        bool nan = value != value;
        y[i] = nan ? 0x7fc0 : (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    }
}
"""
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.halved(x, y, x.numel())
        return y
