"""A warm start for torch.compile on the CPU.

The first compilation on a machine spends 10 to 25 s on a precompiled header and on trying out
vector instruction sets, and every later process half a second or more on finding out that both are
done. A trusted process does it once, from code of ours alone; reference workers see its folder
read-only and take its word.

What a reference worker compiles of its own file, on whichever device, goes from one to the next as
an archive that nobody else reads: the forms of a task have most of their kernels in common, and a
form that was compiled is compiled no second time, nor tuned.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from typing import Any, TypedDict

if __name__ == "__main__":
    sys.path.insert(0, os.path.realpath(os.path.join(__file__, "..", "..", "..")))

from kwharness.machine import toolchain
from kwharness.process import linux

RECORD = "record.json"
WARM_TIMEOUT = 300.0
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # folders side by side
MAX_PACKED = 256 << 20
TUNED = ".best_config"  # a file of a Triton kernel whose variants were timed


class Record(TypedDict):
    """What a warm folder has found out of this machine."""

    vector_sets: list[tuple[str, str, bool]]  # flags, code, and whether they compile it
    headers: list[tuple[str, str, str]]  # name, command, and what that made, in the folder


def compiles(source: str) -> bool:
    """Tells whether a reference may compile itself."""
    return "compile" in source


def warm(cache_dir: str) -> str:
    """Returns the folder of what is precompiled for this machine and toolchain, made now if need
    be.

    Returns "" where it cannot be made, for want of a compiler: torch.compile then works as well as
    it can.
    """
    folder = os.path.join(cache_dir, f"inductor-{toolchain.identity()}")
    if os.path.exists(os.path.join(folder, RECORD)):
        return folder
    if not toolchain.compiler():
        return ""
    os.makedirs(cache_dir, exist_ok=True)
    work = tempfile.mkdtemp(prefix="inductor-", dir=cache_dir)
    try:
        scratch = os.path.join(work, "scratch")
        env = toolchain.trusted_environment()
        env |= {"TORCHINDUCTOR_CACHE_DIR": scratch, "TMPDIR": work, "HOME": work}
        env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        subprocess.run(
            [sys.executable, "-I", "-B", os.path.realpath(__file__), work],
            env=env,
            check=True,
            capture_output=True,
            timeout=WARM_TIMEOUT,
            preexec_fn=linux.die_with_parent,
        )
        shutil.rmtree(scratch, ignore_errors=True)
        _readable(work)
        with contextlib.suppress(OSError):  # another process was faster
            os.rename(work, folder)
    except (OSError, subprocess.SubprocessError):
        return ""
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder if os.path.exists(os.path.join(folder, RECORD)) else ""


def use(folder: str) -> None:
    """Lets torch.compile in this process start from a warm folder, where that can be used."""
    try:
        with open(os.path.join(folder, RECORD), encoding="utf-8") as f:
            record: Record = json.load(f)
    except (OSError, ValueError):
        return
    from torch._inductor import codecache, cpu_vec_isa

    built = {(f, code): bool(ok) for f, code, ok in record.get("vector_sets", [])}
    try_out = cpu_vec_isa.VecISA.check_build

    def check_build(self: Any, code: str) -> bool:
        known = built.get((self.build_arch_flags(), code))
        return try_out(self, code) if known is None else known

    cpu_vec_isa.VecISA.check_build = check_build
    original = getattr(codecache, "_precompile_header", None)
    if original is None:
        return
    known = {(h, c): os.path.join(folder, p) for h, c, p in record.get("headers", [])}

    def precompile_header(header: str, hashable_cmd_line: str, **command: Any) -> str:
        found = known.get((header, hashable_cmd_line))
        return found if found else original(header, hashable_cmd_line, **command)

    codecache._precompile_header = precompile_header


def write_for(threads: int) -> None:
    """Has torch.compile write code for so many threads of the CPU, whatever number compiles it:
    another process can then take it over.
    """
    from torch._inductor import config

    config.cpp.threads = threads


def packed() -> int:
    """Returns a descriptor of what torch.compile has made in this process, an archive, the caller's
    to close; -1 where that is nothing, or too much to hand on.
    """
    root, names = _folders()
    if not names:
        return -1
    fd = os.memfd_create("compiled", os.MFD_CLOEXEC)
    try:
        with (
            open(fd, "wb", closefd=False) as f,
            tarfile.open(fileobj=f, mode="w", dereference=True) as archive,
        ):
            for name in names:
                archive.add(os.path.join(root, name), name)
        if os.fstat(fd).st_size <= MAX_PACKED:
            return fd
    except OSError:  # a compiler at work in there
        pass
    os.close(fd)
    return -1


def unpack(fd: int, *, tuned: bool = True) -> None:
    """Puts what ``packed`` gave where torch.compile looks for it in this process. ``tuned``: what
    was found by measuring, too; without it kernels are compiled, and measured once more.
    """
    with open(fd, "rb", closefd=False) as f:
        f.seek(0)  # it is where who wrote it, or read it, has left it
        with tarfile.open(fileobj=f, mode="r") as archive:
            # Python before 3.11.4 has no filters, and 3.14 has one of its own.
            archive.extraction_filter = lambda member, _: member
            wanted = [m for m in archive if _plain(m) and (tuned or not m.name.endswith(TUNED))]
            archive.extractall(_folders()[0], wanted)


def _plain(m: tarfile.TarInfo) -> bool:
    """Whether it is a file or a folder, in its place: a reference has packed it."""
    inside = not m.name.startswith("/") and ".." not in m.name.split("/")
    return inside and (m.isreg() or m.isdir())


def _folders() -> tuple[str, list[str]]:
    """Returns where what is compiled is kept, and the names of the folders that are there."""
    folders = [os.environ[n] for n in CACHES if os.environ.get(n)]
    root = os.path.dirname(folders[0]) if folders else ""
    alike = [f for f in folders if os.path.dirname(f) == root and os.path.isdir(f)]
    return root, [os.path.basename(f) for f in alike]


def _readable(folder: str) -> None:
    for place, folders, files in os.walk(folder):
        for name in folders:
            os.chmod(os.path.join(place, name), 0o755)
        for name in files:
            os.chmod(os.path.join(place, name), 0o644)
    os.chmod(folder, 0o755)


def _make(work: str) -> None:
    """Compiles models of ours and records what the compiler was asked to prepare. Runs in a process
    of its own.
    """
    import torch
    from torch._inductor import codecache, cpu_vec_isa

    headers = os.path.join(work, "headers")
    os.makedirs(headers)
    codecache._HEADER_DIR = headers
    codecache._HEADER_LOCK_DIR = os.path.join(headers, "locks")
    original = codecache._precompile_header
    made: list[tuple[str, str, str]] = []

    def recording(header: str, hashable_cmd_line: str, **command: Any) -> str:
        path = original(header, hashable_cmd_line, **command)
        made.append((header, hashable_cmd_line, os.path.relpath(path, work)))
        return path

    codecache._precompile_header = recording
    try_out = cpu_vec_isa.VecISA.check_build
    tried: list[tuple[str, str, bool]] = []

    def trying(self: Any, code: str) -> bool:
        ok = try_out(self, code)
        tried.append((self.build_arch_flags(), code, ok))
        return ok

    cpu_vec_isa.VecISA.check_build = trying
    for threads in (torch.get_num_threads(), 1):
        torch.set_num_threads(threads)
        torch._dynamo.reset()
        torch.compile(lambda x: torch.softmax(torch.relu(x) * 2, -1))(torch.randn(64, 256))
    record: Record = {"vector_sets": sorted(set(tried)), "headers": sorted(set(made))}
    with open(os.path.join(work, RECORD), "w", encoding="utf-8") as f:
        json.dump(record, f)


if __name__ == "__main__":
    _make(sys.argv[1])
