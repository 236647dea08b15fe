"""What a forward consists of:

its operators in order, and how many operations they take at least.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kwharness.base.torch_modes import uncompiled
from kwharness.numerics import operator_sets, orders, rounding

# Names that move or make data and compute nothing.
_SILENT = {
    "detach",
    "clone",
    "copy_",
    "_to_copy",
    "empty",
    "zeros",
    "ones",
    "full",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "arange",
    "lift_fresh",
    "alias",
    "contiguous",
    "cat",
    "stack",
    "_local_scalar_dense",
    "scalar_tensor",
    "fill_",
    "zero_",
    "empty_strided",
    "resolve_conj",
    "resolve_neg",
    "_unsafe_view",
    "_reshape_alias",
    "gather",
    "index",
    "index_select",
}

# Operations for each element that goes in, where more than one is plain.
_PER_INPUT = {
    "_softmax": 4,
    "_log_softmax": 4,
    "native_layer_norm": 6,
    "native_group_norm": 6,
    "native_batch_norm": 2,
    "_native_batch_norm_legit": 6,
    "_native_batch_norm_legit_no_training": 2,
    "_batch_norm_no_update": 2,
    "var": 3,
    "var_mean": 3,
    "std": 3,
    "linalg_vector_norm": 2,
    "_fused_rms_norm": 4,
    "mse_loss": 3,
}


@uncompiled
class Counter(TorchDispatchMode):
    """Run a forward under this; then read ``operators``, ``operations``, ``linear``, and how long
    are ``lengths`` that are reduced, sorted or scanned, and sums in ``products`` of matrices.
    """

    LINEAR = frozenset(
        [
            "mm",
            "bmm",
            "addmm",
            "baddbmm",
            "mv",
            "dot",
            "convolution",
            "mkldnn_convolution",
            "conv2d",
            "linear",
            "sum",
            "cumsum",
            "add",
            "add_",
            "sub",
            "sub_",
            "neg",
        ]
    )

    def __init__(self) -> None:
        super().__init__()
        from torch.utils.flop_counter import flop_registry

        self._flops = flop_registry
        self.operators: list[str] = []
        self.operations = 0
        self.lengths: set[int] = set()
        self.products: set[int] = set()
        self.linear = True  # every operator that computes is linear in the inputs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        self.lengths.add(orders.length_of(name, args, kwargs))
        if name in operator_sets.PRODUCTS_OF_MATRICES:
            self.products.add(rounding.terms_of(name, args))
        if func.is_view or name in _SILENT:
            return out
        self.operators.append(f"aten.{name.strip('_')}")
        self.linear = self.linear and name in self.LINEAR
        counted = self._flops.get(func.overloadpacket)
        if counted is not None:
            try:
                self.operations += int(counted(*args, **kwargs, out_val=out))
                return out
            except Exception:
                pass  # arguments that its formula does not know: by elements, then
        sizes = [t.numel() for t in _tensors(args)] + [t.numel() for t in _tensors(out)]
        self.operations += max(sizes, default=0) * _PER_INPUT.get(name, 1)
        return out


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in _tensors(v)]
    return []
