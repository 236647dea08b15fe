import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rms_norm_rows(x, weight, y, n, eps, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * n
    i = tl.arange(0, BLOCK)
    v = tl.load(x + at + i, mask=i < n, other=0.0)
    scale = 1.0 / tl.sqrt(tl.sum(v * v, 0) / n + eps)
    w = tl.load(weight + i, mask=i < n)
    tl.store(y + at + i, v * scale * w, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.shape[-1]
        block = triton.next_power_of_2(n)
        rms_norm_rows[(x.numel() // n,)](x, self.weight, y, n, self.eps, BLOCK=block, num_warps=4)
        return y
