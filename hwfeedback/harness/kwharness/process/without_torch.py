"""A module in torch's place, in processes that read and compile and run nobody's Python.

Importing torch takes a second and more, which a compiler's error need not wait for. What builds
asks torch for its version and where it lies, and the loader of candidates for the names of types.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import types
from typing import Any


class _Named(types.ModuleType):
    """Has a name for all that is asked of it, and nothing behind them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{self.__name__}.{name}"

    def set_num_threads(self, count: int) -> None:
        """There are none."""

    def device(self, name: str) -> str:
        """Stands for a device."""
        return name


def install() -> None:
    """Puts it there. Raises ImportError where torch is not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ImportError("there is no torch")
    folder = os.path.dirname(spec.origin)
    said = runpy.run_path(os.path.join(folder, "version.py"))
    torch, nn, version = (_Named(n) for n in ("torch", "torch.nn", "torch.version"))
    nn.__dict__["Module"] = object
    version.__dict__["cuda"] = said.get("cuda")
    torch.__dict__.update(__file__=spec.origin, __version__=said["__version__"])
    torch.__dict__.update(nn=nn, version=version)
    for module in (torch, nn, version):
        sys.modules[module.__name__] = module
