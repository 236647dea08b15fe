"""What a reference's constructor and forward may be called with."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch

from kwharness.base import trees


def argument_names(model: torch.nn.Module) -> list[str]:
    try:
        found = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def signature(f: Any) -> dict[str, Any]:
    """Returns what a call may name, as JSON: the names of its parameters, those among them that are
    given by keyword alone, and their defaults, as trees, where these are plain values. ``any``:
    whether it takes more than it names.
    """
    said: dict[str, Any] = {"names": [], "keywords": [], "defaults": {}, "any": False}
    try:
        found = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return said | {"any": True}
    for p in found:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            said["any"] = True
            continue
        said["names"].append(p.name)
        if p.kind == p.KEYWORD_ONLY:
            said["keywords"].append(p.name)
        if p.default is not p.empty:
            with contextlib.suppress(trees.TreeError):
                tree, tensors = trees.flatten(p.default)
                said["defaults"] |= {} if tensors else {p.name: tree}
    return said
