"""Softmax over the rows as a work folder: CUDA in kernels/, bound as the module cuda_extension."""

import cuda_extension
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return cuda_extension.softmax(x)
