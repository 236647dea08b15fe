"""A depthwise convolution whose weights are copied to constant memory before each launch."""

import torch
import torch.nn as nn

from kernelwright import native


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs():
    return [torch.randn(16, 64, 96, 96)]


def get_init_inputs():
    return [64]


# The candidate.

lib = native(
    language="cuda",
    source=r"""
__constant__ float taps[1024 * 9];

__global__ void conv(const float* x, float* y, int channels, int height, int width) {
    int at = blockIdx.x * blockDim.x + threadIdx.x, pixels = height * width;
    if (at >= pixels) return;
    const float* w = taps + blockIdx.y % channels * 9;
    const float* in = x + (long long)blockIdx.y * pixels;
    int r = at / width, c = at % width;
    float sum = 0;
    for (int i = -1; i <= 1; i++)
        for (int j = -1; j <= 1; j++)
            if (r + i >= 0 && r + i < height && c + j >= 0 && c + j < width)
                sum += in[at + i * width + j] * w[(i + 1) * 3 + j + 1];
    y[(long long)blockIdx.y * pixels + at] = sum;
}

extern "C" void run(const float* x, const float* weight, float* y, int images, int channels,
                    int height, int width, cudaStream_t stream) {
    cudaMemcpyToSymbolAsync(taps, weight, sizeof(float) * channels * 9, 0,
                            cudaMemcpyDeviceToDevice, stream);
    dim3 grid((height * width + 255) / 256, images * channels);
    conv<<<grid, 256, 0, stream>>>(x, y, channels, height, width);
}
""",
)


class ModelNew(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        assert channels <= 1024
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        lib.run(x, self.conv.weight, y, *x.shape)
        return y
