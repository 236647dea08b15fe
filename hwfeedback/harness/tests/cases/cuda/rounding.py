# rounding/right: as it stands
# rounding/right_reciprocal: rintf(x[i] / scale) -> rintf(x[i] * (1.0f / scale))
# rounding/wrong_biased: rintf(x[i] / scale) -> floorf(x[i] / scale + 0.52f)
# rounding/wrong_truncates: rintf(x[i] / scale) -> truncf(x[i] / scale)
import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cuda",
    source=r"""
__device__ float larger(float a, float b) { return b > a || b != b ? b : a; }

extern "C" __global__ void quant(const float* x, signed char* q, float* s, int n) {
    __shared__ float part[256];
    x += blockIdx.x * n, q += blockIdx.x * n;
    float top = 0;
    for (int i = threadIdx.x; i < n; i += 256) top = larger(top, fabsf(x[i]));
    part[threadIdx.x] = top;
    __syncthreads();
    for (int i = 0; i < 256; i++) top = larger(top, part[i]);
    float scale = (top < 1e-8f ? 1e-8f : top) / 127.0f;
    if (threadIdx.x == 0) s[blockIdx.x] = scale;
    for (int i = threadIdx.x; i < n; i += 256) {
        float v = rintf(x[i] / scale);
        q[i] = (signed char)(int)(v < -128 ? -128 : v > 127 ? 127 : v);
    }
}
""",
)


class ModelNew(nn.Module):
    def forward(self, x):
        q = torch.empty_like(x, dtype=torch.int8)
        s = x.new_empty(x.shape[0], 1)
        lib.quant[x.shape[0], 256](x.contiguous(), q, s, x.shape[1])
        return q, s
