"""Operators, by what float32 rounds in them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
# Results that are one of the arguments, or no rounding at all.
EXACT = {
    "abs",
    "neg",
    "relu",
    "relu_",
    "clamp",
    "clamp_min",
    "clamp_max",
    "clamp_",
    "hardtanh",
    "hardtanh_",
    "maximum",
    "minimum",
    "max",
    "min",
    "amax",
    "amin",
    "where",
    "copy_",
    "clone",
    "fill_",
    "zero_",
    "sign",
    "masked_fill",
    "masked_fill_",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "floor",
    "ceil",
    "round",
    "trunc",
    "threshold",
    "threshold_",
    "leaky_relu",
    "gather",
    "index",
    "index_select",
    "embedding",
    "cat",
    "stack",
    "constant_pad_nd",
    "flip",
    "roll",
    "topk",
    "sort",
    "tril",
    "triu",
    "zeros",
    "ones",
    "full",
    "empty",
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "arange",
    "scatter",
    "repeat",
    "_to_copy",
    "empty_like",
    "new_empty",
    "scalar_tensor",
    "lift_fresh",
    "lift_fresh_copy",
    "detach",
    "fmax",
    "fmin",
    "cummax",
    "cummin",
    "aminmax",
    "median",
    "kthvalue",
    "index_put",
    "index_put_",
    "alias",
    "scatter_",
    "masked_scatter",
    "reflection_pad1d",
    "reflection_pad2d",
    "replication_pad2d",
    "pixel_shuffle",
    "upsample_nearest2d",
    "eye",
    "select_scatter",
    "slice_scatter",
    "nonzero",
    "_unsafe_index",
    "pow_exact",
    "new_empty_strided",
    "empty_strided",
    "empty_permuted",
    "permute_copy",
    "slice_copy",
    "unfold",
    "im2col",
}
# Linear in the magnitudes of their arguments: the same operator over absolute values gives the sum
# of magnitudes.
SUMS = {
    "sum",
    "mean",
    "cumsum",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addbmm",
    "mv",
    "addmv",
    "dot",
    "convolution",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "mkldnn_convolution",
    "conv2d",
    "linear",
    "upsample_bilinear2d",
    "index_add",
    "scatter_add",
    "trace",
    "col2im",
    "slow_conv3d_forward",
    "_slow_conv2d_forward",
    "einsum",
    "matmul",
}
PRODUCTS_OF_MATRICES = {"mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "addbmm"}
ONE_AXIS = {"sum", "mean", "cumsum"}
# One rounding a factor, in whatever order.
PRODUCTS = {"prod", "cumprod"}
_TAKEN_APART = {
    "_softmax",
    "_log_softmax",
    "_safe_softmax",
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_no_update",
    "_batch_norm_with_update",
    "var",
    "var_mean",
    "std",
    "std_mean",
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "nll_loss_forward",
    "soft_margin_loss",
    "logsumexp",
    "_fused_rms_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "logaddexp",
    "linalg_vector_norm",
    "norm",
    "hinge_embedding_loss",
    "_scaled_dot_product_flash_attention_for_cpu",
    "silu",
    "mish",
    "softplus",
    "hardswish",
    "hardsigmoid",
    "elu",
    "log_sigmoid_forward",
    "glu",
    "addcmul",
    "addcdiv",
    "addmv",
    "lerp",
    "native_dropout",
    "gelu",
    "celu",
}


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    from torch._decomp import decomposition_table

    return {torch.ops.prims.var.default: _variance} | {
        op: f
        for op, f in decomposition_table.items()
        if isinstance(op, torch._ops.OpOverload) and name_of(op) in _TAKEN_APART and not mutates(op)
    }


def _variance(x: torch.Tensor, dims: Any, correction: float | None = 1, **_: Any) -> torch.Tensor:
    """Takes a variance apart, which torch's own decompositions leave whole."""
    dims = list(range(x.dim())) if dims is None else dims
    # A running mean, as Welford's, is rounded anew with every element. In place: x may be large.
    off = torch.ones_like(x).mul_(x.mean(dims, keepdim=True))
    total = off.sub_(x).square_().sum(dims)
    n = x.numel() / max(total.numel(), 1)
    return total / max(n - (1 if correction is None else correction), 1)


def name_of(op: Any) -> str:
    return op._schema.name.partition("::")[2]


def mutates(op: Any) -> bool:
    return op._schema.is_mutable
