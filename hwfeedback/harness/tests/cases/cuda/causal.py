# structure/right_causal: as it stands
import torch
import torch.nn as nn

from kernelwright import native

# A block for each query. Later keys are never read, as in every flash kernel.
lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void attend(const float* q, const float* k, const float* v, float* y, int n, int d) {
    extern __shared__ float s[];
    int i = blockIdx.x, head = blockIdx.y * n;
    q += (head + i) * d, y += (head + i) * d, k += head * d, v += head * d;
    for (int j = threadIdx.x; j <= i; j += blockDim.x) {
        float t = 0;
        for (int e = 0; e < d; e++) t += q[e] * k[j * d + e];
        s[j] = t / sqrtf((float)d);
    }
    __syncthreads();
    float top = -INFINITY, z = 0;
    for (int j = 0; j <= i; j++) top = fmaxf(top, s[j]);
    for (int j = 0; j <= i; j++) z += expf(s[j] - top);
    for (int e = threadIdx.x; e < d; e += blockDim.x) {
        float o = 0;
        for (int j = 0; j <= i; j++) o += expf(s[j] - top) / z * v[j * d + e];
        y[e] = o;
    }
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, length):
        super().__init__()

    def load_reference_state(self, state):
        pass

    def forward(self, q, k, v):
        y = torch.empty_like(q)
        b, h, n, d = q.shape
        lib.attend[(n, b * h), 64, 4 * n](q.contiguous(), k.contiguous(), v.contiguous(), y, n, d)
        return y
