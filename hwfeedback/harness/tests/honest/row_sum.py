"""A product with a vector of ones: the sum in the order of the BLAS."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mv(torch.abs(x), x.new_ones(x.shape[1]))
