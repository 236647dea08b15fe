"""What a forward must read and write at least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kwharness.base.graph import Graph
from kwharness.base.tensors import DTYPES, Spec

# What reads all that it is given, whatever its values are.
NEED_ALL = set(
    """
    abs neg relu leaky_relu sigmoid tanh softplus selu elu gelu silu mish hardtanh hardswish
    hardsigmoid exp log sqrt rsqrt square pow add sub rsub mul div clamp clamp_min clamp_max
    minimum maximum sum mean amax amin max min argmax argmin var std norm linalg_vector_norm
    logsumexp softmax log_softmax cumsum layer_norm group_norm rms_norm
    """.split()  # noqa: SIM905
)


def bytes_of(specs: Sequence[Spec]) -> int:
    return sum(s.numel * s.itemsize for s in specs if s.dtype in DTYPES)


def needed_bytes(graph: Graph | None) -> int:
    """Returns the bytes of inputs and outputs of a captured graph where every element of them is
    certainly read or written, whatever inputs without structure hold, else 0. A slice, a gather, a
    mask or a strided window need not read all, nor does a product; a view need not write.
    """
    if graph is None:
        return 0
    try:
        nodes = {n.name: n for n in graph.nodes}
        inputs = {i.name: i for i in graph.inputs}
        if any(n.many or n.operator not in NEED_ALL for n in nodes.values()):
            return 0
        given = _refs(graph.outputs)
        used = {r for n in nodes.values() for r in _refs([n.args, n.kwargs])}
        if len(set(given)) < len(given) or not set(given) <= set(nodes):
            return 0
        if not set(inputs) <= used or not set(nodes) <= used | set(given):
            return 0
        read = [
            Spec(i.dtype, i.shape)
            for i in inputs.values()
            if i.dtype is not None and i.shape is not None and 0 not in (i.strides or [])
        ]
        if len(read) < len(inputs):
            return 0  # one is no tensor, or it is expanded
        written = [Spec(o.dtype, o.shape) for g in given for o in nodes[g].outputs]
        return bytes_of([*read, *written])
    except (LookupError, RecursionError):
        return 0  # it is a reference's invention


def _refs(tree: Any) -> list[str]:
    """Returns the names of the tensors in a part of a graph."""
    if isinstance(tree, dict):
        own = [str(tree["ref"])] if "ref" in tree else []
        return own + [r for v in tree.values() for r in _refs(v)]
    return [r for v in tree for r in _refs(v)] if isinstance(tree, (list, tuple)) else []
