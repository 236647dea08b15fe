"""What a reference computes, as a graph of operators: those that people write (softmax,
layer_norm, linear), none of them in place.

It is captured in the reference's worker (task/capture.py). Go keeps it, and its built-in Coder
plans over it: coder/internal/plan/graph.go reads the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kwharness.base.records import FLAT, NULL, Message, Natural

# An argument of an operator: null, a bool, a number, a text, or a list of arguments. Others are
# objects: a tensor is {"ref": name}, and {"ref": name, "item": i} where it is one of several
# outputs; a float that JSON cannot hold {"float": "inf"}; {"dtype": "float32"}, {"device": "cpu"};
# anything else of torch's {"torch": "contiguous_format"}.
Argument = Any

# What forward returns: {"value": argument}, {"tuple": [tree]}, {"list": [tree]} or
# {"dict": [[key, tree]]}.
OutputTree = Any


@dataclass(frozen=True)
class GraphTensor(Message):
    """A tensor that an operator makes."""

    shape: list[Natural]
    dtype: str  # without "torch."; "none": an optional output that the operator left out
    strides: list[Natural]  # elements
    # Whether its leading dimension is the batch; none where the graph has no batch.
    batch: bool | None = None


@dataclass(frozen=True)
class GraphInput(Message):
    """An input of forward: a tensor, or a value for which alone the graph holds."""

    name: str
    path: list[Any]  # indices and keys, from the arguments of forward to it
    shape: list[Natural] | None = None  # of a tensor, and so the next two
    dtype: str | None = None  # without "torch."
    strides: list[Natural] | None = None  # elements
    value: Argument = None  # of what is no tensor

    def to_json(self) -> dict[str, Any]:
        """Returns the object: a value that is None is written, as null."""
        out = super().to_json()
        return out if self.shape is not None else {**out, "value": self.value}


@dataclass(frozen=True)
class GraphParameter(Message):
    """A parameter, or a buffer of the state_dict."""

    name: str
    tensor: GraphTensor = field(metadata=FLAT)
    state: str  # its name in the state_dict


@dataclass(frozen=True)
class GraphConstant(Message):
    """A tensor that is not in the state_dict."""

    name: str
    tensor: GraphTensor = field(metadata=FLAT)
    data: list[Argument]  # its elements, one after the other


@dataclass(frozen=True)
class GraphNode(Message):
    """One operator."""

    name: str
    op: str  # "aten.softmax.int"
    args: list[Argument]
    kwargs: dict[str, Argument]
    outputs: list[GraphTensor]
    many: bool  # it returns several tensors, and not one

    @property
    def operator(self) -> str:
        """Returns the operator's name, without namespace and overload."""
        return self.op.split(".")[1]


@dataclass(frozen=True)
class GraphBatch(Message):
    """That the leading dimension of inputs may vary."""

    size: Natural  # in the call that was captured
    inputs: list[str]  # their names


@dataclass(frozen=True)
class Graph(Message):
    """What one forward computes."""

    v: Natural = field(default=1, kw_only=True)  # of this form
    inputs: list[GraphInput]
    parameters: list[GraphParameter]
    constants: list[GraphConstant]
    nodes: list[GraphNode]  # each after those that it uses
    outputs: OutputTree
    # Another size of the leading dimension gave the same graph. Recurrent layers are not tried.
    batch: GraphBatch | None = field(default=None, metadata=NULL)
