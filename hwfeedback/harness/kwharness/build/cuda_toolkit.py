"""Where the headers and libraries of CUDA's toolkit lie."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence

from kwharness.machine import toolchain


def gencode(arch: str) -> str:
    """nvcc's flag for one architecture. ``-arch`` would have it compile a second time, to PTX."""
    return f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}"


def cuda_includes() -> list[str]:
    """The flags with which g++ finds CUDA's headers, and torch those of the toolkit's libraries."""
    return ["-isystem", os.path.join(toolchain.cuda_home(), "include")]


def cuda_folders() -> list[str]:
    """Where CUDA's libraries lie: the toolkit's, and those that came with torch."""
    import torch

    release = (torch.version.cuda or "").partition(".")[0]
    home = toolchain.cuda_home()
    beside = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia")
    folders = (f"{home}/lib64", f"{home}/lib", f"{beside}/cu{release}/lib")
    return [f for f in folders if os.path.isdir(f)]


def cuda_runtime() -> list[str]:
    """The flags that link the runtime of CUDA: the one that torch has in the process already."""
    import torch

    name = "libcudart.so." + (torch.version.cuda or "").partition(".")[0]
    # By its path: where pip put the toolkit there is no name without a version.
    found = [p for p in (os.path.join(f, name) for f in cuda_folders()) if os.path.exists(p)]
    return ["-Xlinker", found[0]] if found else ["-lcudart"]


def _found(flags: Sequence[str]) -> list[str]:
    """Returns the linker's flags, with the path of each of CUDA's libraries that is there under a
    name with a version alone, as pip puts it.
    """
    out: list[str] = []
    for flag in flags:
        name = f"lib{flag[2:]}.so" if re.fullmatch(r"-l\w+", flag) else ""
        paths = [os.path.join(f, name) for f in cuda_folders()] if name else []
        versions = [v for p in paths for v in sorted(glob.glob(glob.escape(p) + ".*"))]
        out.append(versions[0] if versions and not any(map(os.path.exists, paths)) else flag)
    return out
