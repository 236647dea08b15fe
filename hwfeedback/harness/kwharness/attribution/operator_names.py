"""Operators of libraries, by what they do."""

from __future__ import annotations

# PyTorch's own libraries of operators.
LIBRARIES = ("aten", "prims", "prim", "mkldnn", "mkldnn_prepacked", "mkl", "quantized")
# Matrix products, convolutions and recurrent layers: on a CPU, MKL's and oneDNN's.
VENDOR = {
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addbmm",
    "mv",
    "addmv",
    "dot",
    "convolution",
    "mkldnn_convolution",
    "linear",
    "mkldnn_rnn_layer",
    "_scaled_dot_product_flash_attention_for_cpu",
    "mkldnn_linear",
    "_mkl_linear",
    "convolution_overrideable",
    "_slow_conv2d_forward",
    "slow_conv3d_forward",
    "_convolution",
    # A GPU's: cuBLAS and cuDNN.
    "_scaled_mm",
    "_int_mm",
    "cudnn_convolution",
    "cudnn_convolution_relu",
    "_cudnn_rnn",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_addmm_activation",
}
# What makes room or looks at it: no operator of a task is covered by it, and none is left to
# PyTorch by it.
HOUSEKEEPING = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "detach",
    "alias",
    "new_empty_strided",
}
# What moves or looks at values and computes none, beside those: not counted where it is hidden.
PLAIN = set(
    """
    copy_ clone _to_copy to contiguous fill_ zero_ zeros ones full view _unsafe_view reshape
    _reshape_alias as_strided expand expand_as t transpose permute slice select narrow
    unsqueeze squeeze flatten unbind split chunk item _local_scalar_dense is_nonzero set_
    resize_ resolve_conj resolve_neg lift_fresh zeros_like ones_like result_type conj
    numpy_T mT mH adjoint view_as movedim moveaxis ravel data detach_ is_pinned unflatten
    unfold diagonal swapaxes swapdims real imag view_as_real view_as_complex broadcast_to
    broadcast_tensors size tensor_split hsplit vsplit dsplit unsafe_split unsafe_chunk
    can_cast type_as squeeze_ unsqueeze_ t_ transpose_ cudnn_is_acceptable promote_types
    """.split()  # noqa: SIM905
)
