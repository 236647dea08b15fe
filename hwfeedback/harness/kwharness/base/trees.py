"""Containers of tensors as JSON: what forward takes and returns, with the tensors numbered.

A tree is ``{"t": i}`` for tensor i, ``{"value": v}`` for None, a bool, an int, a float or a
string, and ``{"list": [..]}``, ``{"tuple": [..]}`` or ``{"dict": [[key, ..], ..]}`` for
containers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

MAX_DEPTH = 32
# What a person writes down stays far below these; a list of a billion numbers does not, and every
# value would cost its reader a hundred bytes.
MAX_VALUES = 10_000
MAX_CHARACTERS = 1 << 20  # of all strings together
MAX_INT_BITS = 4096


class TreeError(ValueError):
    """A value has no place in a tree; the message is a clause: "holds a set"."""


class _Found:
    """The tensors so far, and how much else there was."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.values = 0
        self.characters = 0

    def count(self, v: Any) -> None:
        self.values += 1
        if isinstance(v, str):
            self.characters += len(v)
        if self.values > MAX_VALUES:
            raise TreeError(f"holds over {MAX_VALUES} values")
        if self.characters > MAX_CHARACTERS:
            raise TreeError(f"holds over {MAX_CHARACTERS} characters of text")
        if isinstance(v, int) and v.bit_length() > MAX_INT_BITS:
            raise TreeError(f"holds an integer of {v.bit_length()} bits")


def named(kind: type) -> str:
    """Returns a type as a sentence has it: "a set", "an object", "None"."""
    name = "".join(c for c in kind.__name__[:80] if c.isprintable())
    if kind is type(None):
        return "None"
    return f"{'an' if name[:1].lower() in 'aeio' or name == 'ndarray' else 'a'} {name}"


def flatten(value: Any, *, numbers: bool = False) -> tuple[Any, list[torch.Tensor]]:
    """Returns the tree of a value and its tensors in order.

    With ``numbers``, floats become tensors of no dimension: what a model returns is compared, not
    copied.
    """
    found = _Found()
    return _flatten(value, numbers, found, 0), found.tensors


def _flatten(v: Any, numbers: bool, found: _Found, depth: int) -> Any:
    # No closure over the list: one that calls itself is a cycle, which would keep every tensor
    # until the garbage collector comes, and timed calls would find no memory free.
    if depth > MAX_DEPTH:
        raise TreeError("is nested too deeply")
    found.count(v)
    tensors = found.tensors
    if isinstance(v, torch.Tensor):
        tensors.append(v)
        return {"t": len(tensors) - 1}
    if isinstance(v, float) and numbers:
        tensors.append(torch.tensor(v, dtype=torch.float32))
        return {"t": len(tensors) - 1}
    if isinstance(v, float) and not math.isfinite(v):
        return {"float": str(v)}
    if v is None or isinstance(v, (bool, int, float, str)):
        return {"value": v}
    if isinstance(v, dict):
        if not all(isinstance(k, (str, int)) for k in v):
            raise TreeError("holds a dict whose keys are neither strings nor integers")
        for k in v:
            found.count(k)
        return {"dict": [[k, _flatten(x, numbers, found, depth + 1)] for k, x in v.items()]}
    if isinstance(v, (tuple, torch.Size)):
        return {"tuple": [_flatten(x, numbers, found, depth + 1) for x in v]}
    if isinstance(v, list):
        return {"list": [_flatten(x, numbers, found, depth + 1) for x in v]}
    if isinstance(v, torch.dtype):
        return {"dtype": str(v).removeprefix("torch.")}
    raise TreeError(f"{'holds' if depth else 'is'} {named(type(v))}")


def build(tree: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Returns the value of a tree over these tensors. Raises TreeError for what is no tree."""
    if not isinstance(tree, dict) or len(tree) != 1:
        raise TreeError("is malformed")
    kind, v = next(iter(tree.items()))
    if kind == "t" and type(v) is int and 0 <= v < len(tensors):
        return tensors[v]
    if kind == "value" and (v is None or isinstance(v, (bool, int, float, str))):
        return v
    if kind == "float" and v in ("nan", "inf", "-inf"):
        return float(v)
    if kind == "dtype" and isinstance(v, str) and isinstance(getattr(torch, v, None), torch.dtype):
        return getattr(torch, v)
    if kind == "list" and isinstance(v, list):
        return [build(x, tensors) for x in v]
    if kind == "tuple" and isinstance(v, list):
        return tuple(build(x, tensors) for x in v)
    if kind == "dict" and isinstance(v, list) and all(map(_is_item, v)):
        return {k: build(x, tensors) for k, x in v}
    raise TreeError("is malformed")


def _is_item(v: Any) -> bool:
    return isinstance(v, list) and len(v) == 2 and isinstance(v[0], (str, int))


def same_shape(a: Any, b: Any) -> bool:
    """Whether two trees of outputs have the same structure; a list will do for a tuple."""
    if not isinstance(a, dict) or not isinstance(b, dict) or len(a) != 1 or len(b) != 1:
        return False
    (ka, va), (kb, vb) = next(iter(a.items())), next(iter(b.items()))
    if ka in ("list", "tuple") and kb in ("list", "tuple"):
        return len(va) == len(vb) and all(same_shape(x, y) for x, y in zip(va, vb, strict=True))
    if ka != kb:
        return False
    if ka == "dict":
        if len(va) != len(vb):
            return False
        other = dict(vb)
        return all(k in other and same_shape(x, other[k]) for k, x in va)
    return ka == "t" or va == vb


def ordered_like(tree: Any, pattern: Any) -> list[int]:
    """Returns the numbers of the tensors of ``tree`` in the order that ``pattern`` numbers them.

    Both must have the ``same_shape``; only dicts can differ, in the order of their keys.
    ``pattern`` numbers its tensors in order, as ``flatten`` does.
    """
    if "t" in pattern:
        return [tree["t"]]
    kind, parts = next(iter(pattern.items()))
    if kind == "dict":
        mine = dict(next(iter(tree.values())))
        return [i for k, x in parts for i in ordered_like(mine[k], x)]
    if kind in ("list", "tuple"):
        own = next(iter(tree.values()))
        return [i for x, p in zip(own, parts, strict=True) for i in ordered_like(x, p)]
    return []


def renumbered(tree: Any) -> Any:
    """Returns the tree with its tensors numbered from 0 in order."""
    count = 0

    def walk(t: Any) -> Any:
        nonlocal count
        kind, v = next(iter(t.items()))
        if kind == "t":
            count += 1
            return {"t": count - 1}
        if kind in ("list", "tuple"):
            return {kind: [walk(x) for x in v]}
        if kind == "dict":
            return {kind: [[k, walk(x)] for k, x in v]}
        return t

    return walk(tree)
