"""The product of two that come as a dict."""

import torch


class Model(torch.nn.Module):
    def forward(self, pair):
        return pair["a"] * pair["b"]


def get_inputs():
    return [{"a": torch.randn(64, 32), "b": torch.randn(32)}]


def get_init_inputs():
    return []
