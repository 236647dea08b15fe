"""Dispatch modes without torch.compile:

torch wraps each so that its first operator imports all of torch._dynamo.
"""

from __future__ import annotations

from typing import TypeVar

from torch.utils._python_dispatch import TorchDispatchMode

Mode = TypeVar("Mode", bound=type[TorchDispatchMode])


def uncompiled(mode: Mode) -> Mode:
    """Takes the wrapper off a mode that never runs inside compiled code.

    It costs 1.5 s in every fresh process.
    """
    wrapped = getattr(mode.__dict__.get("__torch_dispatch__"), "__wrapped__", None)
    if wrapped is not None:
        mode.__torch_dispatch__ = wrapped  # type: ignore[method-assign]
    return mode
