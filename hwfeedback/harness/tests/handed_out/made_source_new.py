import torch

from kernelwright import native

FACTOR = 3
lib = native(
    source=f"""
extern "C" void times(const float* x, float* y, long long n) {{
#pragma omp parallel for
    for (long long i = 0; i < n; i++) y[i] = {FACTOR} * x[i];
}}
"""
)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lib = lib

    def forward(self, x):
        y = torch.empty_like(x)
        self.lib.times(x, y, x.numel())
        return y
