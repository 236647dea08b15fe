import torch

from kernelwright import native

lib = native(
    source=r"""
extern "C" void sums(const float* x, float* y, long long rows, long long width) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        double sum = 0;
        for (long long j = 0; j < width; j++) sum += x[i * width + j];
        y[i] = sum;
    }
}
"""
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = x.new_empty(x.shape[0])
        lib.sums(x, y, *x.shape)
        return y
