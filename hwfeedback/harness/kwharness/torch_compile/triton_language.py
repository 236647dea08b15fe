"""Triton, whose kernels compile when they are first called."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from kwharness.torch_compile.called_language import CalledLanguage, nothing

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 103, 120)


def _folder() -> str:
    return os.environ.get("TRITON_CACHE_DIR") or os.path.expanduser("~/.triton/cache")


def _function() -> Any:
    jit = sys.modules.get("triton.runtime.jit")
    return None if jit is None else jit.JITFunction.run


def _stand_in() -> None:
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction

    for kind in (Autotuner, Heuristics, JITFunction):
        kind.run = nothing


def _prepare() -> None:
    with contextlib.suppress(Exception):  # who needs what is missing will say so
        from triton import knobs
        from triton.backends.nvidia import compiler, driver
        from triton.runtime import build, cache

        build.platform_key()
        cache.triton_key()
        for architecture in ARCHITECTURES:
            compiler.get_ptxas_version(architecture)
        _ = knobs.nvidia.ptxas, knobs.nvidia.ptxas_blackwell
        driver.libcuda_dirs()


TRITON = CalledLanguage(
    kind="triton",
    name="Triton",
    module="triton",
    on_cores=False,
    folder=_folder,
    function=_function,
    stand_in=_stand_in,
    prepare=_prepare,
    errors=frozenset(
        ("CompilationError", "CompileTimeAssertionFailure", "PTXASError", "OutOfResources")
    ),
    elsewhere="active drivers",
    facts={"warps": "num_warps", "shared_bytes": "shared"},
)
