"""Where a model keeps tensors: every place that can be read and written."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

SEQUENCES = (list, tuple, deque)
MAX_DEPTH = 8  # of lists, tuples and dicts below an attribute
_OWN = set(torch.nn.Module().__dict__)  # attributes that every module has


@dataclass(frozen=True)
class Slot:
    """A place that holds a tensor: ``path`` leads to it from a module's attributes, buffers or
    parameters. The way is gone anew each time, for a forward may replace what lies on it.
    """

    root: dict[str, Any]
    path: tuple[Any, ...]
    made: tuple[Any, ...] = ()  # the lists, tuples and dicts on the way, as they first were
    trained: bool = False  # it is a parameter

    def get(self) -> Any:
        found: Any = self.root
        for key in self.path:
            found = _at(found, key)
        return found

    def put(self, t: torch.Tensor) -> None:
        if self.get() is not t:
            parameter = self.trained and not isinstance(t, torch.nn.Parameter)
            _put(self.root, self.path, self.made, torch.nn.Parameter(t, False) if parameter else t)


def _takes(holder: Any, key: Any) -> bool:
    """Whether a tensor can be put at a key."""
    if isinstance(holder, SEQUENCES):
        return isinstance(key, int) and 0 <= key < len(holder)
    return isinstance(holder, dict)


def _at(holder: Any, key: Any) -> Any:
    """Returns what is at a key, or None."""
    if isinstance(holder, dict):
        return holder.get(key)
    return holder[key] if _takes(holder, key) else None


def _put(holder: Any, path: Sequence[Any], made: Sequence[Any], t: torch.Tensor) -> Any:
    """Returns the holder with a tensor in it, or another one where that cannot be changed."""
    key, *rest = path
    value: Any = t
    if rest:
        inner = _at(holder, key)
        inner = inner if _takes(inner, rest[0]) else copy.copy(made[0])
        value = _put(inner, rest, made[1:], t)
    if isinstance(holder, tuple):
        items = [*holder[:key], value, *holder[key + 1 :]]
        return holder._make(items) if hasattr(holder, "_make") else type(holder)(items)
    holder[key] = value
    return holder


def _named(prefix: str, name: object) -> str:
    return f"{prefix}.{name}" if prefix else str(name)


Place = tuple[str, Any, Slot]  # its name and what is in it


def places(model: torch.nn.Module) -> Iterator[Place]:
    """Yields all places of a model: parameters, buffers, attributes, and what is in lists, tuples
    and dicts among these.
    """
    for prefix, m in model.named_modules():
        for holder, trained in ((m._parameters, True), (m._buffers, False)):
            for name, t in holder.items():
                yield _named(prefix, name), t, Slot(holder, (name,), trained=trained)
        for name, value in list(vars(m).items()):
            if name not in _OWN:
                yield from _below(_named(prefix, name), value, Slot(vars(m), (name,)))


def _below(name: str, value: Any, slot: Slot) -> Iterator[Place]:
    yield name, value, slot
    if not isinstance(value, (dict, *SEQUENCES)) or len(slot.made) == MAX_DEPTH:
        return
    made = (*slot.made, copy.copy(value))
    for k, v in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield from _below(f"{name}.{k}", v, Slot(slot.root, (*slot.path, k), made))


def slots(model: torch.nn.Module) -> dict[str, Slot]:
    """Returns by name all places of a model that hold a tensor."""
    return {name: slot for name, value, slot in places(model) if isinstance(value, torch.Tensor)}
