import torch

from kernelwright import native

lib = native(
    source=r"""
#include <cmath>
extern "C" void softmax(const float* x, float* y, long long rows, long long width) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * width;
        float* out = y + i * width;
        float top = -INFINITY;
        bool nan = false;
        for (long long j = 0; j < width; j++) {
            nan |= in[j] != in[j];
            top = in[j] > top ? in[j] : top;
        }
        double sum = 0;
        for (long long j = 0; j < width; j++) sum += out[j] = nan ? NAN : std::exp(in[j] - top);
        for (long long j = 0; j < width; j++) out[j] /= sum;
    }
}
"""
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x, y, *x.shape)
        return y
