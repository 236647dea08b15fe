# state/right_cache: as it stands
# state/wrong_cache_ignored: kc[last + j] = k[j], vc[last + j] = v[j]; -> ;
# state/wrong_cache_ignored: kc[p * d + j] -> (p == position ? k[j] : 0)
# state/wrong_cache_ignored: vc[p * d + j] -> (p == position ? v[j] : 0)
import torch
import torch.nn as nn

from kernelwright import native

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void attend(const float* q, const float* k, const float* v, float* kc, float* vc, float* y, int n, int d, int position) {
    extern __shared__ float s[];
    int i = blockIdx.x, last = position * d;
    q += i * d, k += i * d, v += i * d, y += i * d, kc += i * n * d, vc += i * n * d;
    for (int j = threadIdx.x; j < d; j += blockDim.x) kc[last + j] = k[j], vc[last + j] = v[j];
    __syncthreads();
    for (int p = threadIdx.x; p <= position; p += blockDim.x) {
        float t = 0;
        for (int j = 0; j < d; j++) t += q[j] * kc[p * d + j];
        s[p] = t;
    }
    __syncthreads();
    float top = -INFINITY, z = 0;
    for (int p = 0; p <= position; p++) top = fmaxf(top, s[p]);
    for (int p = 0; p <= position; p++) z += expf(s[p] - top);
    for (int j = threadIdx.x; j < d; j += blockDim.x) {
        float o = 0;
        for (int p = 0; p <= position; p++) o += expf(s[p] - top) / z * vc[p * d + j];
        y[j] = o;
    }
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, length, dim):
        super().__init__()
        self.register_buffer("k", torch.zeros(4, length, dim))
        self.register_buffer("v", torch.zeros(4, length, dim))

    def forward(self, q, k, v, position: int):
        y = torch.empty_like(q)
        (b, d), n = q.shape, self.k.shape[1]
        given = q.contiguous(), k.contiguous(), v.contiguous(), self.k, self.v
        lib.attend[b, 64, 4 * (position + 1)](*given, y, n, d, position)
        return y
