"""Rows first, then columns, as the maximum of shifted slices."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, kernel: int, stride: int, padding: int):
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for dim in (2, 3):
            size = (x.shape[dim] + 2 * self.padding - self.kernel) // self.stride + 1
            pad = (0, 0, self.padding, self.padding) if dim == 2 else (self.padding, self.padding)
            x = F.pad(x, pad, value=-torch.inf)
            reach = (size - 1) * self.stride + 1
            slices = [x.narrow(dim, k, reach) for k in range(self.kernel)]
            index = torch.arange(0, reach, self.stride)
            y = slices[0].index_select(dim, index)
            for other in slices[1:]:
                y = torch.maximum(y, other.index_select(dim, index))
            x = y
        return x
