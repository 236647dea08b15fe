"""Cross entropy of a batch of logits with integer targets."""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch, classes = 1024, 1000


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, target)


def get_inputs():
    return [2.0 * torch.randn(batch, classes), torch.randint(0, classes, (batch,))]


def get_init_inputs():
    return []
