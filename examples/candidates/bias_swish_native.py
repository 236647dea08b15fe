"""bias_swish in the native form: one pass over the data, in C++ that the compiler can vectorise."""

import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cpp",
    source=r"""
#include <math.h>
#include <stdint.h>
#include <string.h>

// Within two units in the last place. Only arithmetic and selections, so that loops over it
// vectorise.
static inline float fast_exp(float x) {
    float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    float n = rintf(clamped * 1.44269504f);
    float r = fmaf(n, -0.693145752f, clamped);
    r = fmaf(n, -1.42860677e-6f, r);
    float p = 1.98756912e-4f;
    p = fmaf(p, r, 1.39819994e-3f);
    p = fmaf(p, r, 8.33345205e-3f);
    p = fmaf(p, r, 4.16657962e-2f);
    p = fmaf(p, r, 1.66666657e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p * r, r, r) + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    float y = p * power;
    y = x > 88.7f ? INFINITY : y;
    return x < -87.3f ? 0.0f : y;
}

extern "C" void bias_swish(const float* x, const float* bias, float* y, long long rows,
                           long long columns) {
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * columns;
        float* out = y + i * columns;
        for (long long j = 0; j < columns; j++) {
            float v = in[j] + bias[j];
            float s = v * (1.0f / (1.0f + fast_exp(-v)));
            out[j] = s < -0.2f ? -0.2f : (s > 2.0f ? 2.0f : s);
        }
    }
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, columns: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.bias_swish(x, self.bias, y, x.shape[0], x.shape[1])
        return y
