import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    source=r"""
#include <cstdint>
extern "C" void scaled(const float* x, float* y, int64_t n, int64_t step) {
  for (int64_t i = 0; i < n; i += step) y[i] = (x[i] < 0 ? 0 : x[i]) * 2 + 1;
}
"""
)

# every 1 elements
with open(__file__) as itself:
    STEP = int(itself.read().split("# every ")[1].split()[0])


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.scaled(x, y, x.numel(), STEP)
        return y
