"""What compiles here, and the words that tell one machine's objects from another's."""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import os
import platform
import shutil
import subprocess
import sys

NSIGHT_COMPUTE = "/opt/nvidia/nsight-compute"  # where packages put it
NO_NVCC = "there is no nvcc here: install the CUDA toolkit, or pip install nvidia-cuda-nvcc"
NO_COMPILER = "there is no C++ compiler here: install one (Debian, Ubuntu: apt install g++)"


class Missing(RuntimeError):
    """This machine lacks something, one sentence: trying again does not help."""


def forget() -> None:
    """Has what is installed looked for again: it may be something else since."""
    for known in list(globals().values()):
        if clear := getattr(known, "cache_clear", None):
            clear()


@functools.cache
def compiler() -> str:
    """The path of g++, or "" where there is none."""
    return shutil.which("g++") or shutil.which("g++", path="/usr/local/bin:/usr/bin:/bin") or ""


@functools.cache
def compiler_version() -> str:
    """The first line of ``g++ --version``, or ""."""
    return _version(compiler())[0]


def _version(program: str) -> list[str]:
    """The lines of what a program says to ``--version``; an empty one where it says nothing."""
    if not program:
        return [""]
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return [""]
    return done.stdout.strip().splitlines() or [""]


@functools.cache
def nvcc() -> str:
    """The path of nvcc, or "" where there is none: on the path, in CUDA_HOME, in the toolkit's
    usual folder, or beside torch, where pip puts it.
    """
    folders = [os.path.join(os.environ.get("CUDA_HOME") or "/usr/local/cuda", "bin")]
    for site in sys.path:
        folders += sorted(glob.glob(os.path.join(site, "nvidia", "cu*", "bin")))
    return shutil.which("nvcc") or shutil.which("nvcc", path=":".join(folders)) or ""


def _reader(name: str) -> str:
    """Returns the path of a program of the toolkit's that reads objects, or "": beside nvcc, or
    where Triton has its own.
    """
    folders = [os.path.join(cuda_home(), "bin")]
    folders += [os.path.join(s, "triton", "backends", "nvidia", "bin") for s in sys.path]
    return shutil.which(name, path=":".join(folders)) or shutil.which(name) or ""


@functools.cache
def cuobjdump() -> str:
    """The path of cuobjdump, or "" where there is none."""
    return _reader("cuobjdump")


@functools.cache
def nvdisasm() -> str:
    """The path of nvdisasm, or "" where there is none."""
    return _reader("nvdisasm")


@functools.cache
def compute_sanitizer() -> str:
    """The path of compute-sanitizer, or "" where there is none. Its folder is all that it needs."""
    # A toolkit's bin has a script that starts the one in a folder of its own; pip's has it itself.
    folders = [os.path.join(cuda_home(), name) for name in ("compute-sanitizer", "bin")]
    return shutil.which("compute-sanitizer", path=":".join(folders)) or ""


@functools.cache
def ncu() -> str:
    """The path of Nsight Compute's program, or "" where there is none."""
    usual = sorted(glob.glob(os.path.join(NSIGHT_COMPUTE, "*")), reverse=True)
    folders = [os.path.join(cuda_home() or "/usr/local/cuda", "bin"), *usual]
    return shutil.which("ncu") or shutil.which("ncu", path=":".join(folders)) or ""


def cuda_home() -> str:
    """The folder of the toolkit that nvcc belongs to, or ""."""
    return os.path.dirname(os.path.dirname(nvcc()))


@functools.cache
def nvcc_version() -> str:
    """What tells one release of nvcc from another, or ""."""
    return _version(nvcc())[-1]


@functools.cache
def architecture() -> str:
    """The machine and what its processor can do: ``-march=native`` means this."""
    flags = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            for line in f:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    flags = " ".join(sorted(value.split()))
                    break
    except OSError:
        pass
    return f"{platform.machine()} {hashlib.sha256(flags.encode()).hexdigest()[:16]}"


def key(*parts: str) -> str:
    """A hex hash of texts. No two lists of texts share one by concatenation."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        h.update(len(data).to_bytes(8, "big"))
        h.update(data)
    return h.hexdigest()


def cutlass() -> str:
    """Names the CUTLASS that CUTLASS_PATH names: its place and release, and each header's path,
    size and time. "" where there is none. Made anew each time: a checkout is changed in its place.
    """
    import kernelwright

    folders = kernelwright.cutlass_folders()
    parts = [kernelwright.cutlass_version(folders)]
    for folder in folders:
        for place, inner, files in os.walk(folder):
            inner.sort()
            for path in (os.path.join(place, name) for name in sorted(files)):
                with contextlib.suppress(OSError):  # a link to nowhere
                    is_now = os.stat(path)
                    parts += [path, str(is_now.st_size), str(is_now.st_mtime_ns)]
    return key(*parts) if folders else ""


def identity() -> str:
    """Names this machine's toolchain: objects of another identity are never used."""
    import torch

    python = f"{sys.implementation.cache_tag}"
    return key(compiler_version(), architecture(), torch.__version__, python)[:24]


def trusted_environment() -> dict[str, str]:
    """For trusted children of ours that compile."""
    path = [os.path.join(sys.prefix, "bin"), "/usr/local/bin", "/usr/bin", "/bin"]
    if compiler():
        path.insert(1, os.path.dirname(compiler()))
    return {
        "PATH": ":".join(dict.fromkeys(path)),
        "LANG": "C.UTF-8",
        "USER": "worker",
        "LOGNAME": "worker",
        "OPENBLAS_NUM_THREADS": "1",
    }
