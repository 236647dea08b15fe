"""Triton's kernels of a candidate: compiled by running it once, in a builder's sandbox on the GPU.

Triton compiles when a kernel is first called, with programs (ptxas, a C compiler) that a
candidate's worker may not start. So one worker that may start them runs a forward on a draw that is
used for nothing else; what then lies in Triton's cache, autotuning's choices among it, is given to
the candidate's workers, which find all of it there. It is the candidate's own word, and no other
candidate ever sees it.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import io
import os
import sys
import zipfile
from typing import Any

MAX_BYTES = 64 << 20
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 103, 120)
ERRORS = ("CompilationError", "CompileTimeAssertionFailure", "PTXASError", "OutOfResources")
KERNEL = "triton"  # the custom function that stands for whichever kernel is called
_LIBRARY = tuple(importlib.machinery.EXTENSION_SUFFIXES)


def folder() -> str:
    """Returns where Triton keeps what it compiles, in this process."""
    return os.environ.get("TRITON_CACHE_DIR") or os.path.expanduser("~/.triton/cache")


def prepare() -> None:
    """For the fork server, on a machine with a GPU: imports Triton, and has it find and keep what
    it would ask other programs for in every process.
    """
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


def packed() -> bytes:
    """Returns what Triton has compiled here, b"" where it has nothing.

    Raises ValueError where that is too much.
    """
    out = io.BytesIO()
    size = 0
    with zipfile.ZipFile(out, "w") as archive:
        for at, _, names in sorted(os.walk(folder())):
            for name in sorted(names):
                path = os.path.join(at, name)
                size += os.path.getsize(path)
                if size > MAX_BYTES:
                    raise ValueError(f"its Triton kernels have over {MAX_BYTES >> 20} MB compiled")
                archive.write(path, os.path.relpath(path, folder()))
    return out.getvalue() if size else b""


def unpack(fd: int) -> None:
    """Puts what ``packed`` gave where Triton looks for it. Libraries are loaded from memory: no
    file that is written here may be.
    """
    with (
        open(fd, "rb", closefd=False) as f,
        zipfile.ZipFile(f) as archive,
    ):
        for info in archive.infolist():
            path = os.path.join(folder(), info.filename)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            data = archive.read(info)
            if not path.endswith(_LIBRARY):
                with open(path, "wb") as out:
                    out.write(data)
                continue
            library = os.memfd_create(os.path.basename(path)[:60])
            with open(library, "wb", closefd=False) as out:
                out.write(data)
            os.symlink(f"/proc/self/fd/{library}", path)


def functions() -> dict[str, Any]:
    """Returns what runs when a kernel is called, where Triton was imported."""
    jit = sys.modules.get("triton.runtime.jit")
    return {} if jit is None else {KERNEL: jit.JITFunction.run}


def stand_in() -> None:
    """Has every kernel do nothing, nor be tuned."""
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction

    def nothing(*_: Any, **__: Any) -> None: ...

    for kind in (Autotuner, Heuristics, JITFunction):
        kind.run = nothing
