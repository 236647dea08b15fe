"""What a reference's constructor and forward may be called with."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch

from kwharness.base import trees
from kwharness.base.for_reference import Signature


def argument_names(model: torch.nn.Module) -> list[str]:
    try:
        found = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def signature(f: Any) -> Signature:
    """Returns what a call may name. Defaults are trees, where they are plain values."""
    try:
        found = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return Signature(any=True)
    more = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in found if p.kind not in more]
    defaults: dict[str, Any] = {}
    for p in named:
        if p.default is not p.empty:
            with contextlib.suppress(trees.TreeError):
                tree, tensors = trees.flatten(p.default)
                defaults |= {} if tensors else {p.name: tree}
    keywords = [p.name for p in named if p.kind == p.KEYWORD_ONLY]
    return Signature([p.name for p in named], keywords, defaults, any=len(named) < len(found))
