import torch

from kernelwright import native

lib = native(
    source=r"""
extern "C" void added(const float* x, float* total, float* y, long long rows, long long width) {
    for (long long j = 0; j < width; j++) {
        double sum = 0;
        for (long long i = 0; i < rows; i++) sum += x[i * width + j];
        total[j] += sum;
        for (long long i = 0; i < rows; i++) y[i * width + j] = x[i * width + j] + total[j];
    }
}
"""
)


class ModelNew(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("total", torch.zeros(n))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.added(x, self.total, y, *x.shape)
        return y
