"""softmax_native in KernelBench's form: the same algorithm through load_inline."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

// exp(x) for x <= 0, within two units in the last place. Only arithmetic and selections, so that
// loops over it vectorise.
static inline float fast_exp(float x) {
    float clamped = x < -87.0f ? -87.0f : x;
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
    return x < -87.3f ? 0.0f : p * power;
}

enum { LANES = 16 };

torch::Tensor softmax_rows(torch::Tensor input) {
    auto output = torch::empty_like(input);
    const float* x = input.data_ptr<float>();
    float* y = output.data_ptr<float>();
    long long rows = input.size(0), columns = input.size(1);
#pragma omp parallel for
    for (long long i = 0; i < rows; i++) {
        const float* in = x + i * columns;
        float* out = y + i * columns;
        long long whole = columns / LANES * LANES;

        // Sums and maxima go by lane: the compiler may not reorder float additions by itself.
        float top[LANES], sum[LANES] = {0};
        for (int k = 0; k < LANES; k++) top[k] = -INFINITY;
        for (long long j = 0; j < whole; j += LANES)
            for (int k = 0; k < LANES; k++) top[k] = in[j + k] > top[k] ? in[j + k] : top[k];
        for (long long j = whole; j < columns; j++) top[0] = in[j] > top[0] ? in[j] : top[0];
        float m = top[0];
        for (int k = 1; k < LANES; k++) m = top[k] > m ? top[k] : m;

        for (long long j = 0; j < columns; j++) out[j] = fast_exp(in[j] - m);
        for (long long j = 0; j < whole; j += LANES)
            for (int k = 0; k < LANES; k++) sum[k] += out[j + k];
        for (long long j = whole; j < columns; j++) sum[0] += out[j];
        float total = 0;
        for (int k = 0; k < LANES; k++) total += sum[k];

        float factor = 1.0f / total;
        for (long long j = 0; j < columns; j++) out[j] *= factor;
    }
    return output;
}
"""

module = load_inline(
    name="softmax_rows",
    cpp_sources=source,
    functions=["softmax_rows"],
    extra_cflags=["-O3", "-march=native", "-fopenmp", "-fno-math-errno"],
    verbose=False,
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.softmax_rows(x)
