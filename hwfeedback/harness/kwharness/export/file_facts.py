"""What is known of a file that is handed out, for those who write round it: annotate.py and its
parts. Names in it are foreign, and become literals here.
"""

from __future__ import annotations

import io
import keyword
import math
from typing import Any, TypedDict

from kwharness.base.for_reference import Signature

REBUILDS = "_kernelwright_reference"  # the function that has what makes weights
_OURS = {"self", "torch", "Model", "AttributeError", "TypeError", "LookupError", "RuntimeError"}


class Tensor(TypedDict):
    """One tensor of the inputs: the argument it is, or lies in, and where in that. ``free``: the
    name of each dimension that may have any size, None for others. ``order``: its dimensions, the
    one that varies slowest first, where that is another order, as in channels_last; else [].
    """

    argument: int
    path: list[str | int]
    dtype: str
    shape: list[int]
    free: list[str | None]
    order: list[int]


class Named(TypedDict):
    """What a call of the reference may name: for_reference.Signature, as JSON."""

    names: list[str]
    keywords: list[str]
    defaults: dict[str, Any]
    any: bool


def signature(said: Signature) -> Named:
    """Returns that as JSON."""
    return Named(names=said.names, keywords=said.keywords, defaults=said.defaults, any=said.any)


class About(TypedDict):
    """What is known of a file. ``inputs``: of a call, in order; ``arguments``: how many a call has;
    ``init``: trees of what the constructor is given; ``tried``: sizes on which it is right, by the
    name of the dimension, and ``only``: names that may have no others; ``rebuilds``: whether the
    constructor of the ``reference`` (its text) makes the weights, if it can stand in the file, and
    ``takes``: whether it takes them by itself; ``made``: whether it has the reference's weights
    once it is constructed; ``loads``: what takes the reference's state_dict, "" for nothing;
    ``open``: whether it is to be found out yet which shapes it takes.
    """

    task: str
    reference: str
    operators: list[str]
    inputs: list[Tensor]
    arguments: int
    forward: Named
    init: list[Any]
    constructor: Named
    weights: list[str]
    outputs: list[str]
    device: str
    machine: str
    tried: dict[str, list[int]]
    only: list[str]
    rebuilds: bool
    takes: bool
    made: bool
    loads: str
    open: bool
    version: str


def arguments(about: About) -> list[str]:
    """The names of a call's arguments: the reference's, where all are names."""
    n, said = about["arguments"], about["forward"]
    return names_of(said, n) or [f"input{i}" for i in range(n)]


def names_of(said: Named, count: int) -> list[str]:
    """Returns the names of what a call is given, none where it has not a name for each."""
    names = [n for n in said["names"] if n not in said["keywords"]][:count]
    return names if len(names) == count and all(map(is_name, names)) else []


def is_name(name: str) -> bool:
    """Whether a wrapper may call a parameter so."""
    fine = name.isidentifier() and not keyword.iskeyword(name)
    return fine and name[0] != "_" and name not in _OURS


def literal(tree: Any) -> str:
    """Returns a tree without tensors as Python. Raises ValueError."""
    kind, v = next(iter(tree.items())) if isinstance(tree, dict) and len(tree) == 1 else ("", None)
    if kind == "value" and (v is None or isinstance(v, (bool, int, str))):
        return repr(v)
    if kind == "value" and isinstance(v, float) and math.isfinite(v):
        return repr(v)
    if kind == "dtype" and isinstance(v, str) and v.isidentifier():
        return f"torch.{v}"
    if kind in ("list", "tuple") and isinstance(v, list):
        inside = ", ".join(map(literal, v))
        if kind == "list":
            return f"[{inside}]"
        return f"({inside}{',' * (len(v) == 1)})"
    if kind == "dict" and isinstance(v, list):
        items = [f"{k!r}: {literal(x)}" for k, x in v if isinstance(k, (str, int))]
        if len(items) == len(v):
            return f"{{{', '.join(items)}}}"
    raise ValueError("no literal")


def sizes(t: Tensor) -> list[int | str]:
    return [n if name is None else name for n, name in zip(t["shape"], t["free"], strict=True)]


def lines(text: str) -> list[str]:
    """The lines of a text as Python counts them, each with what ends it."""
    return io.StringIO(text, newline="").readlines()
