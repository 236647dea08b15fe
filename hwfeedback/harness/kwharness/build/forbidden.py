"""What policy forbids a candidate to use, where it asks for custom code: it fails where it is
called, as an error that may be caught, and convicts nobody where it is not. What is made of a
function fails when it itself is called, so that a decorated helper that nobody calls is no fault.

It is a help to the honest and no wall: who gets past it has custom code that does not do the work,
which is seen from outside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

# Functions of torch.jit that make something else of a function or a module.
_JIT = ("script", "trace", "trace_module", "freeze", "optimize_for_inference")


class NotAllowed(RuntimeError):
    """A candidate calls what policy forbids."""


def forbid() -> None:
    """Has ``torch.compile`` and ``torch.jit`` fail, in this process."""
    torch.compile = _refusing("torch.compile")  # type: ignore[assignment]
    for name in _JIT:
        setattr(torch.jit, name, _refusing(f"torch.jit.{name}"))


def _refusing(name: str) -> Callable[..., Any]:
    """Returns what stands for a function that makes something of another function or a module."""

    def made(of: Any = None, *_: Any, **__: Any) -> Any:
        if of is None:  # a decorator with arguments
            return made
        if isinstance(of, torch.nn.Module):
            return _Module(of, name)
        if not callable(of):
            raise _refusal(name)

        @functools.wraps(of)
        def refused(*_: Any, **__: Any) -> Any:
            raise _refusal(name)

        return refused

    made.__name__ = made.__qualname__ = name.rpartition(".")[2]
    return made


class _Module(torch.nn.Module):
    """A module that fails when it is called, and has all that it was made of."""

    def __init__(self, of: torch.nn.Module, name: str) -> None:
        super().__init__()
        self._orig_mod = of  # as torch.compile calls it
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules[name]
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["_orig_mod"], name)

    def forward(self, *_: Any, **__: Any) -> Any:
        raise _refusal(self._name)


def _refusal(name: str) -> NotAllowed:
    return NotAllowed(f"{name} is not allowed: a candidate is measured against what it makes")
