"""Two kernels in a CUDA graph, captured at the first forward over buffers of its own: inputs are
copied in, the graph is replayed, and the output is copied out.
"""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-5)
        return y * torch.sigmoid(y)


def get_inputs():
    return [torch.randn(2048, 2048)]


def get_init_inputs():
    return []


# The candidate.

lib = native(
    language="cuda",
    source=r"""
extern "C" __global__ void scales(const float* x, float* scale, int n) {
    __shared__ float part[8];
    x += (long long)blockIdx.x * n;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i] * x[i];
    for (int o = 16; o; o >>= 1) sum += __shfl_down_sync(~0u, sum, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < blockDim.x / 32; w++) sum += part[w];
        scale[blockIdx.x] = 1.0f / sqrtf(sum / n + 1e-5f);
    }
}

extern "C" __global__ void gate(const float* x, const float* scale, float* y, int n) {
    int i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long at = (long long)blockIdx.x * n + i;
    float v = x[at] * scale[blockIdx.x];
    y[at] = v / (1.0f + expf(-v));
}
""",
)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.graph = None

    def kernels(self) -> None:
        rows, n = self.x.shape
        lib.scales[rows, 256](self.x, self.scale, n)
        lib.gate[(rows, -(-n // 256)), 256](self.x, self.scale, self.y, n)

    def capture(self, x: torch.Tensor) -> None:
        self.x, self.y = x.clone(), torch.empty_like(x)
        self.scale = x.new_empty(x.shape[0])
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):  # once before, as PyTorch's manual has it
            self.kernels()
        torch.cuda.current_stream().wait_stream(beside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.kernels()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.graph is None or self.x.shape != x.shape:
            self.capture(x)
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
