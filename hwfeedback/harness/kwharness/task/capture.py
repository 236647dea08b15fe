"""Graph capture: what a reference computes, as a graph (base/graph.py).

It is torch.export's, kept at the level of the operators that people write, with in-place operators
made functional. A second capture with another leading dimension tells whether that is a batch.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kwharness.base.graph import (
    Argument,
    Graph,
    GraphBatch,
    GraphConstant,
    GraphInput,
    GraphNode,
    GraphParameter,
    GraphTensor,
    OutputTree,
)

MAX_CONSTANT = 4096  # elements of a constant that travel in the graph; larger ones are refused
MAX_NODES = 4000  # beyond this a plan would take longer than the rounds it serves
# torch.export goes through each step of a sequence, for ten seconds and more where there are 512,
# and keeps one operator.
RECURRENT = ("gru", "lstm", "rnn_relu", "rnn_tanh")


class CaptureError(Exception):
    """The model is outside what can be captured; the message is one sentence."""


def capture(model: torch.nn.Module, inputs: Any) -> tuple[Graph | None, str]:
    """Returns the graph of ``model(*inputs)`` and ``""``, or None and one sentence saying why not.

    The model is left as it was. Needs no subprocess, thread or file.
    """
    args = tuple(inputs)
    try:
        with _quiet(), torch.no_grad():
            graph = _graph(model, args)
            if not any(n.operator in RECURRENT for n in graph.nodes):
                graph = _batched(model, args, graph)
            json.dumps(graph.to_json(), allow_nan=False)
    except CaptureError as e:
        return None, str(e)
    except Exception as e:
        first = str(e).strip().splitlines()
        detail = first[0][:200] if first else ""
        return None, f"torch.export could not capture the model: {type(e).__name__}: {detail}"
    return graph, ""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch's own reports of attempts that fail (the second capture may) out of the log."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _graph(model: torch.nn.Module, args: tuple[Any, ...]) -> Graph:
    exported = torch.export.export(model, args, strict=False)
    if any(_mutates(n) for n in exported.graph.nodes):
        # An empty table decomposes nothing and still makes in-place operators functional.
        exported = exported.run_decompositions({})
    if len(exported.graph.nodes) > MAX_NODES:
        raise CaptureError(f"the graph has more than {MAX_NODES} operators")
    values: dict[str, Any] = {n.name: n.meta.get("val") for n in exported.graph.nodes}
    parameters, constants, users = _given(exported, values)
    leaves = _leaves(args, users)
    nodes, output = _nodes(exported.graph.nodes)
    out_kinds = torch.export.graph_signature.OutputKind
    for spec in exported.graph_signature.output_specs:
        if spec.kind is not out_kinds.USER_OUTPUT:
            raise CaptureError("the model changes its buffers or its inputs in forward")
    tree = _tree(exported.call_spec.out_spec, [_argument(o, "output") for o in output])
    return Graph(leaves, parameters, constants, nodes, tree)


def _given(
    exported: Any, values: dict[str, Any]
) -> tuple[list[GraphParameter], list[GraphConstant], list[str]]:
    """Returns the parameters and constants of a graph, and the names of the inputs of forward."""
    kinds = torch.export.graph_signature.InputKind
    parameters: list[GraphParameter] = []
    constants: list[GraphConstant] = []
    users: list[str] = []

    for spec in exported.graph_signature.input_specs:
        name = spec.arg.name
        if spec.kind is kinds.USER_INPUT:
            users.append(name)
            continue
        tensor = _tensor(values[name])
        if spec.kind is kinds.PARAMETER or (spec.kind is kinds.BUFFER and spec.persistent):
            parameters.append(GraphParameter(name, tensor, spec.target))
        elif spec.kind in (kinds.BUFFER, kinds.CONSTANT_TENSOR):
            data = _data(exported.constants[spec.target], spec.target)
            constants.append(GraphConstant(name, tensor, data))
        else:
            raise CaptureError(f"the graph has an input of kind {spec.kind.name.lower()}")
    return parameters, constants, users


def _leaves(args: tuple[Any, ...], users: list[str]) -> list[GraphInput]:
    """Returns the inputs of forward, one by one."""
    flat = pytree.tree_flatten_with_path((args, {}))[0]
    if len(flat) != len(users):
        raise CaptureError("the graph's inputs do not match the arguments of forward")
    leaves: list[GraphInput] = []
    for name, (keys, leaf) in zip(users, flat, strict=True):
        path = [_key(k) for k in keys[1:]]
        if isinstance(leaf, torch.Tensor):
            t = _tensor(leaf)
            leaves.append(GraphInput(name, path, t.shape, t.dtype, t.strides))
        elif leaf is None or isinstance(leaf, (bool, int, float, str)):
            leaves.append(GraphInput(name, path, value=_argument(leaf, name)))
        else:
            raise CaptureError(f"forward takes a {type(leaf).__name__}, which has no JSON form")
    return leaves


def _nodes(of: Any) -> tuple[list[GraphNode], Any]:
    """Returns the operators of a graph, and what it gives."""
    nodes: list[GraphNode] = []
    output: Any = None
    for node in of:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            output = node.args[0]
            continue
        if node.op != "call_function":
            raise CaptureError(f"the graph has a node of kind {node.op}")
        if getattr(node.target, "__name__", "") == "getitem":
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            raise CaptureError(f"the graph calls {node.target}, which is no operator")
        if not node.users and not node.target._schema.is_mutable:
            continue
        val = node.meta.get("val")
        many = isinstance(val, (tuple, list))
        nodes.append(
            GraphNode(
                node.name,
                str(node.target),
                [_argument(a, node.name) for a in node.args],
                {k: _argument(v, node.name) for k, v in node.kwargs.items()},
                [_tensor(v) for v in (val if many else [val])],
                many,
            )
        )
    return nodes, output


def _mutates(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _key(key: Any) -> int | str:
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    raise CaptureError("the inputs are nested in a container that has no keys")


def _tensor(value: Any) -> GraphTensor:
    if value is None:
        return GraphTensor([], "none", [])
    if not isinstance(value, torch.Tensor):
        raise CaptureError(f"an operator returns a {type(value).__name__} instead of a tensor")
    if value.layout is not torch.strided:
        raise CaptureError(f"the graph holds a tensor of layout {value.layout}")
    shape, strides = list(value.shape), list(value.stride())
    if not all(isinstance(d, int) for d in shape + strides):
        raise CaptureError("a shape in the graph depends on the data")
    return GraphTensor(shape, str(value.dtype).removeprefix("torch."), strides)


def _data(value: torch.Tensor, name: str) -> list[Argument]:
    if value.numel() > MAX_CONSTANT:
        raise CaptureError(f"{name!r} is a large tensor that is not in the state_dict")
    if value.is_complex():
        raise CaptureError(f"{name!r} is a complex tensor that is not in the state_dict")
    return [_argument(v, name) for v in value.detach().cpu().reshape(-1).tolist()]


def _argument(value: Any, where: str) -> Argument:
    """Returns one argument of a node."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, torch.fx.Node):
        if getattr(value.target, "__name__", "") == "getitem" and value.op == "call_function":
            source, item = value.args
            return {"ref": source.name, "item": int(item)}
        return {"ref": value.name}
    if isinstance(value, (list, tuple)):
        return [_argument(v, where) for v in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": value.type}
    if isinstance(value, (torch.layout, torch.memory_format)):
        return {"torch": str(value).removeprefix("torch.")}
    raise CaptureError(f"an argument of {where} is a {type(value).__name__}: no JSON form")


def _tree(spec: pytree.TreeSpec, leaves: list[Argument]) -> OutputTree:
    """Returns the output's containers, with references as leaves."""
    tree = pytree.tree_unflatten([_Leaf(v) for v in leaves], spec)

    def encode(t: Any) -> OutputTree:
        if isinstance(t, _Leaf):
            return {"value": t.value}
        if isinstance(t, (tuple, list)):  # named tuples lose their names
            return {"list" if isinstance(t, list) else "tuple": [encode(v) for v in t]}
        if type(t) is dict and all(isinstance(k, str) for k in t):
            return {"dict": [[k, encode(v)] for k, v in t.items()]}
        if t is None:
            return {"value": None}
        raise CaptureError(f"forward returns a {type(t).__name__}, which is no plain container")

    return encode(tree)


class _Leaf:
    def __init__(self, value: Any) -> None:
        self.value = value


def _batched(model: torch.nn.Module, args: tuple[Any, ...], graph: Graph) -> Graph:
    """Captures again with a smaller leading dimension, and returns the graph with what followed it.

    Where that dimension is fixed the graph stays as it is. The inputs that share the first input's
    leading size are shortened together.
    """
    tensors = [(i.name, i.shape[0]) for i in graph.inputs if i.shape]
    if not tensors or tensors[0][1] < 3:
        return graph
    size = tensors[0][1]
    smaller = size - 1 if size % 2 == 0 else size // 2 + 1

    def shorten(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == size:
            return leaf[:smaller].clone()
        return leaf

    try:
        other = _graph(model, pytree.tree_map(shorten, args))
    except Exception:
        return graph
    if len(other.nodes) != len(graph.nodes) or other.outputs != graph.outputs:
        return graph
    nodes: list[GraphNode] = []
    for a, b in zip(graph.nodes, other.nodes, strict=True):
        outputs = _marked(a, b, size, smaller)
        if outputs is None:
            return graph
        nodes.append(replace(a, outputs=outputs))
    batch = GraphBatch(size, [name for name, n in tensors if n == size])
    return replace(graph, nodes=nodes, batch=batch)


def _marked(a: GraphNode, b: GraphNode, size: int, smaller: int) -> list[GraphTensor] | None:
    """Returns the outputs of a node with whether they follow the batch, or None where the same node
    with a smaller batch does something else.
    """
    if a.op != b.op or len(a.outputs) != len(b.outputs) or a.kwargs != b.kwargs:
        return None
    sized = a.operator in ("view", "reshape", "expand", "_unsafe_view")
    if not _same(a.args, b.args, size if sized else None, smaller):
        return None
    found: list[GraphTensor] = []
    for x, y in zip(a.outputs, b.outputs, strict=True):
        if x.shape[1:] != y.shape[1:] or x.dtype != y.dtype:
            return None
        follows = x.shape != y.shape
        if follows and (x.shape[0] != size or y.shape[0] != smaller):
            return None
        found.append(replace(x, batch=follows))
    return found


def _same(a: Any, b: Any, size: int | None, smaller: int) -> bool:
    """Whether two argument trees agree, up to the batch as the first entry of a list of sizes."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        if size is not None and a and a[0] == size and b[0] == smaller:
            return a[1:] == b[1:]
        return all(_same(x, y, size, smaller) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and a == b
