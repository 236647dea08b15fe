"""Graph capture: what a reference computes, as plain JSON that the built-in Coder plans over.

The graph is torch.export's, kept at the level of the operators that people write (softmax,
layer_norm, linear), with in-place operators made functional. Its form:

``{"v": 1, "inputs": [value], "parameters": [value], "constants": [value], "nodes": [node],
"outputs": tree, "batch": {"size": n, "inputs": [name]} | null}``

- value: ``{"name", "shape", "dtype", "strides"}``; an input has ``"path"`` (indices and keys from
  the arguments of forward to the tensor), a parameter has ``"state"`` (its name in the
  state_dict), a constant has ``"data"`` (flat). An input that is no tensor has ``"value"``
  instead of a shape: the graph holds for this value only.
- node: ``{"name", "op", "args", "kwargs", "outputs": [{"shape", "dtype", "strides"}], "many"}``.
  In args a tensor is ``{"ref": name}`` (``{"ref": name, "item": i}`` for one of several outputs),
  a dtype ``{"dtype": "float32"}``, a float that JSON cannot hold ``{"float": "inf"}``, anything
  else of torch's ``{"torch": "contiguous_format"}``.
- tree: ``{"value": argument}``, ``{"tuple": [tree]}``, ``{"list": [tree]}`` or
  ``{"dict": [[key, tree]]}``.
- ``batch`` says that the leading dimension of these inputs may vary: a second capture with
  another size gave the same graph, up to that size as the leading dimension of tensors. It is
  not asked of recurrent layers.
  ``outputs[i]["batch"]`` marks those tensors.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

MAX_CONSTANT = 4096  # elements of a constant that travel in the graph; larger ones are refused
MAX_NODES = 4000  # beyond this a plan would take longer than the rounds it serves
# torch.export goes through each step of a sequence, for ten seconds and more where there are 512,
# and keeps one operator.
RECURRENT = ("gru", "lstm", "rnn_relu", "rnn_tanh")


class CaptureError(Exception):
    """The model is outside what can be captured; the message is one sentence."""


def capture(model: torch.nn.Module, inputs: Any) -> tuple[dict[str, Any] | None, str]:
    """Returns the graph of ``model(*inputs)`` and ``""``, or None and one sentence saying why not.

    The model is left as it was. Needs no subprocess, thread or file.
    """
    args = tuple(inputs)
    try:
        with _quiet(), torch.no_grad():
            graph = _graph(model, args)
            if not any(n["op"].split(".")[1] in RECURRENT for n in graph["nodes"]):
                graph["batch"] = _batch(model, args, graph)
            json.dumps(graph, allow_nan=False)
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


def _graph(model: torch.nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
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
    return {
        "v": 1,
        "inputs": leaves,
        "parameters": parameters,
        "constants": constants,
        "nodes": nodes,
        "outputs": tree,
        "batch": None,
    }


def _given(
    exported: Any, values: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Returns the parameters and constants of a graph, and the names of the inputs of forward."""
    signature = exported.graph_signature
    kinds = torch.export.graph_signature.InputKind
    parameters: list[dict[str, Any]] = []
    constants: list[dict[str, Any]] = []
    users: list[str] = []

    for spec in signature.input_specs:
        name = spec.arg.name
        if spec.kind is kinds.USER_INPUT:
            users.append(name)
            continue
        entry = {"name": name, **_tensor(values[name])}
        if spec.kind is kinds.PARAMETER or (spec.kind is kinds.BUFFER and spec.persistent):
            parameters.append({**entry, "state": spec.target})
        elif spec.kind in (kinds.BUFFER, kinds.CONSTANT_TENSOR):
            data = _data(exported.constants[spec.target], spec.target)
            constants.append({**entry, "data": data})
        else:
            raise CaptureError(f"the graph has an input of kind {spec.kind.name.lower()}")
    return parameters, constants, users


def _leaves(args: tuple[Any, ...], users: list[str]) -> list[dict[str, Any]]:
    """Returns the inputs of forward, one by one."""
    flat = pytree.tree_flatten_with_path((args, {}))[0]
    if len(flat) != len(users):
        raise CaptureError("the graph's inputs do not match the arguments of forward")
    leaves: list[dict[str, Any]] = []
    for name, (path, leaf) in zip(users, flat, strict=True):
        entry = {"name": name, "path": [_key(k) for k in path[1:]]}
        if isinstance(leaf, torch.Tensor):
            leaves.append({**entry, **_tensor(leaf)})
        elif leaf is None or isinstance(leaf, (bool, int, float, str)):
            leaves.append({**entry, "value": _argument(leaf, name)})
        else:
            raise CaptureError(f"forward takes a {type(leaf).__name__}, which has no JSON form")
    return leaves


def _nodes(of: Any) -> tuple[list[dict[str, Any]], Any]:
    """Returns the operators of a graph, and what it gives."""
    nodes: list[dict[str, Any]] = []
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
            {
                "name": node.name,
                "op": str(node.target),
                "args": [_argument(a, node.name) for a in node.args],
                "kwargs": {k: _argument(v, node.name) for k, v in node.kwargs.items()},
                "outputs": [_tensor(v) for v in (val if many else [val])],
                "many": many,
            }
        )
    return nodes, output


def _mutates(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _key(key: Any) -> int | str:
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    raise CaptureError("the inputs are nested in a container that has no keys")


def _tensor(value: Any) -> dict[str, Any]:
    if value is None:  # an optional output that the operator left out
        return {"shape": [], "dtype": "none", "strides": []}
    if not isinstance(value, torch.Tensor):
        raise CaptureError(f"an operator returns a {type(value).__name__} instead of a tensor")
    if value.layout is not torch.strided:
        raise CaptureError(f"the graph holds a tensor of layout {value.layout}")
    shape, strides = list(value.shape), list(value.stride())
    if not all(isinstance(d, int) for d in shape + strides):
        raise CaptureError("a shape in the graph depends on the data")
    return {"shape": shape, "dtype": str(value.dtype).removeprefix("torch."), "strides": strides}


def _data(value: torch.Tensor, name: str) -> list[Any]:
    if value.numel() > MAX_CONSTANT:
        raise CaptureError(f"{name!r} is a large tensor that is not in the state_dict")
    if value.is_complex():
        raise CaptureError(f"{name!r} is a complex tensor that is not in the state_dict")
    return [_argument(v, name) for v in value.detach().cpu().reshape(-1).tolist()]


def _argument(value: Any, where: str) -> Any:
    """Returns one argument of a node as JSON."""
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


def _tree(spec: pytree.TreeSpec, leaves: list[Any]) -> Any:
    """Returns the output's containers as JSON: tuple, list and dict, with references as leaves."""
    tree = pytree.tree_unflatten([_Leaf(v) for v in leaves], spec)

    def encode(t: Any) -> Any:
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


def _batch(
    model: torch.nn.Module, args: tuple[Any, ...], graph: dict[str, Any]
) -> dict[str, Any] | None:
    """Captures again with a smaller leading dimension and marks what followed it.

    None where that dimension is fixed. The inputs that share the first input's leading size are
    shortened together.
    """
    tensors = [i for i in graph["inputs"] if i.get("shape")]
    if not tensors or tensors[0]["shape"][0] < 3:
        return None
    size = tensors[0]["shape"][0]
    names = [i["name"] for i in tensors if i["shape"][0] == size]
    smaller = size - 1 if size % 2 == 0 else size // 2 + 1

    def shorten(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == size:
            return leaf[:smaller].clone()
        return leaf

    try:
        other = _graph(model, pytree.tree_map(shorten, args))
    except Exception:
        return None
    if len(other["nodes"]) != len(graph["nodes"]) or other["outputs"] != graph["outputs"]:
        return None
    marks: list[tuple[dict[str, Any], bool]] = []
    for a, b in zip(graph["nodes"], other["nodes"], strict=True):
        if a["op"] != b["op"] or len(a["outputs"]) != len(b["outputs"]):
            return None
        sized = a["op"].split(".")[1] in ("view", "reshape", "expand", "_unsafe_view")
        if a["kwargs"] != b["kwargs"]:
            return None
        if not _same(a["args"], b["args"], size if sized else None, smaller):
            return None
        for x, y in zip(a["outputs"], b["outputs"], strict=True):
            if x["shape"][1:] != y["shape"][1:] or x["dtype"] != y["dtype"]:
                return None
            if x["shape"] == y["shape"]:
                marks.append((x, False))
            elif x["shape"][0] == size and y["shape"][0] == smaller:
                marks.append((x, True))
            else:
                return None
    for entry, follows in marks:
        entry["batch"] = follows
    return {"size": size, "inputs": names}


def _same(a: Any, b: Any, size: int | None, smaller: int) -> bool:
    """Whether two argument trees agree, up to the batch as the first entry of a list of sizes."""
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        if size is not None and a and a[0] == size and b[0] == smaller:
            return a[1:] == b[1:]
        return all(_same(x, y, size, smaller) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and a == b
