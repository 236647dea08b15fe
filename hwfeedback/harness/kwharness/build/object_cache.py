"""The cache of what was built.

A folder holds three things, each written to a temporary name and renamed: objects/<key>.so with
<key>.json beside it (SHA-256 and the compiler's report), builds/<key>.json (what a whole candidate
came to), and header-<key>/ (our lighter torch/extension.h with precompiled forms of it). An object
whose hash is not the recorded one counts as absent and is built again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import kernelwright
from kwharness.base.built import (
    Artifact,
    BuildRequest,
    BuildResult,
    CachedFile,
    CompilerReport,
    Failed,
    Refused,
)
from kwharness.base.for_builder import Compiled
from kwharness.base.protocol import ProtocolError
from kwharness.build import compilers, headers, reports, torch_headers
from kwharness.build.form import (
    CALLED,
    NATIVE,
)
from kwharness.machine import toolchain
from kwharness.torch_compile import called_cache

RULES = "12"  # changes when the same candidate would build to something else
MAX_BYTES = 256 << 20  # of one object
MAX_HEADERS = 3  # precompiled headers kept; each is some 500 MB
FAILED = ".failed.json"  # what is known of a source that does not compile
KEPT = ("", "rejected", "build_failed")  # what a candidate comes to again, and is kept
NONE = "none"  # the CUTLASS of a candidate that asks for it, where there is none


def open_all(files: Iterable[CachedFile]) -> list[int]:
    """Returns a descriptor for each file: a sealed copy of it in memory, verified.

    The caller closes them. Raises OSError where the cache no longer holds what was built: build
    again.
    """
    fds: list[int] = []
    try:
        for file in files:
            fds.append(opened(file))
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return fds


def opened(file: CachedFile) -> int:
    """The same for one file."""
    with open(file.path, "rb") as f:
        data = f.read()
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise OSError(f"{file.path} is not what was built")
    return _sealed(data, file.name)


def cached_failure(cache_dir: str, request: BuildRequest) -> Refused | None:
    said = read_json(path_in(cache_dir, "objects", object_key(request) + FAILED))
    try:
        return Refused.from_json(said)
    except ProtocolError:
        return None


def cached_object(cache_dir: str, request: BuildRequest) -> tuple[Artifact, CompilerReport] | None:
    key = object_key(request)
    record = read_json(path_in(cache_dir, "objects", key + ".json"))
    if record is None:
        return None
    record |= {n: request[n] for n in ("kind", "name", "request")}
    record |= {"key": key, "path": path_in(cache_dir, "objects", key + ".so")}
    try:
        artifact = Artifact.from_json(record)
        said = Compiled.from_json(record.get("report"))
    except ProtocolError:
        return None
    return (artifact, reports.compiler_report(said)) if _intact(artifact) else None


def keep_object(artifact: Artifact, report: CompilerReport | None = None) -> None:
    """Keeps what is known of an object beside it."""
    said = {"report": report.to_json()} if report is not None else {}
    write_json(artifact.path.removesuffix(".so") + ".json", artifact.to_json() | said)


def kept_build(path: str) -> BuildResult | None:
    """Returns what a candidate came to, or None where that is not kept whole."""
    try:
        found = BuildResult.from_json(read_json(path))
    except ProtocolError:
        return None
    report = found.build
    said = [d for each in (report.errors, report.vectorised, report.missed) for d in each or ()]
    whole = all(0 <= d.line < 1 << 62 and d.message.isprintable() for d in said)
    whole = whole and report.form is not None and found.status in KEPT
    if found.cutlass:
        whole = whole and found.cutlass == (toolchain.cutlass() or NONE)
    return found if whole and all(map(_intact, found.artifacts)) else None


def object_key(request: BuildRequest) -> str:
    flags: tuple[str, ...] = kernelwright.FLAGS if request["kind"] == NATIVE else ("load_inline",)
    if request.get("language") == "cuda":
        own = kernelwright.CUBIN_FLAGS if request.get("launched") else kernelwright.CUDA_FLAGS
        flags = (*flags, *own, request["arch"], *_cuda_versions())
        flags += (request["cutlass"],) if request.get("cutlass") else ()
    asked = (RULES, request["kind"], request["request"])  # with the headers in its sources
    return toolchain.key(*asked, *flags, toolchain.identity())


def build_key(text: str, device: str, arch: str, forbids: bool) -> str:
    cuda = (*kernelwright.CUDA_FLAGS, arch, *_cuda_versions()) if arch else ()
    policy_is = "forbids" if forbids else "any"
    own = (RULES, headers.digest(), policy_is, text, device, *kernelwright.FLAGS, *cuda)
    return toolchain.key(*own, toolchain.identity())


def _cuda_versions() -> tuple[str, str]:
    return toolchain.nvcc_version(), kernelwright.nvrtc_version()


def kept_kernels(cache_dir: str, key: str) -> Artifact | None:
    """Returns the artifact of what was compiled before by calling it, or None."""
    try:
        found = Artifact.from_json(read_json(path_in(cache_dir, "objects", key + ".json")))
    except ProtocolError:
        return None
    if found.kind != CALLED or found.libraries is None:
        return None
    sound = all(map(_intact, [found, *found.libraries]))
    return (
        found
        if sound and all(called_cache.names_library(n.name) for n in found.libraries)
        else None
    )


def keep_kernels(cache_dir: str, key: str, fd: int, libraries: Mapping[str, int]) -> Artifact:
    """Keeps what a worker has compiled (called_cache.py) and returns its artifact; all of it, or
    nothing. ``libraries``: descriptors, by names that names_library has found good. Raises Failed.
    """
    path = path_in(cache_dir, "objects", key + ".so")
    beside: list[CachedFile] = []
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path), prefix=".new-") as folder:
        whole = os.path.join(folder, "kernels")
        sha256 = copy_into(fd, whole, 2 * called_cache.MAX_BYTES)
        moves = [(whole, path)]
        left = called_cache.MAX_LIBRARY_BYTES
        for i, (name, library) in enumerate(libraries.items()):
            place = path_in(cache_dir, "objects", f"{key}-{i}.so")
            moves.append((os.path.join(folder, str(i)), place))
            beside.append(CachedFile(name, copy_into(library, moves[-1][0], left), place))
            left -= os.path.getsize(moves[-1][0])
        for made, place in moves:
            os.rename(made, place)
    artifact = Artifact("kernels", sha256, path, CALLED, CALLED, key, libraries=beside)
    keep_object(artifact)
    return artifact


def light_header(cache_dir: str) -> str:
    """The folder with our torch/extension.h, in front of torch's own when compiling load_inline."""
    return _header_folder(cache_dir, {torch_headers.SHIM: torch_headers.LIGHT_HEADER})


def light_tensor(cache_dir: str) -> str:
    """The same with tensor_light.h in place of torch's headers, for load_inline in CUDA."""
    here = os.path.dirname(os.path.abspath(__file__))
    files = dict.fromkeys(torch_headers.STANDS_FOR, f'#include "{torch_headers.TENSOR_LIGHT[0]}"\n')
    for name in torch_headers.TENSOR_LIGHT:
        with open(os.path.join(here, name), encoding="utf-8") as f:
            files[name] = f.read()
    return _header_folder(cache_dir, files)


def _header_folder(cache_dir: str, files: dict[str, str]) -> str:
    key = toolchain.key(*itertools.chain(*files.items()), toolchain.identity())[:24]
    folder = os.path.join(os.path.abspath(cache_dir), f"header-{key}")
    if not os.path.exists(os.path.join(folder, torch_headers.SHIM)):
        os.makedirs(os.path.join(folder, torch_headers.SHIM + ".gch"), mode=0o755, exist_ok=True)
        for name in sorted(
            files, key=lambda n: n == torch_headers.SHIM
        ):  # that one says it is whole
            os.makedirs(os.path.dirname(os.path.join(folder, name)), mode=0o755, exist_ok=True)
            replace_file(os.path.join(folder, name), files[name].encode())
    return folder


def header_key(flags: Sequence[str]) -> str:
    return toolchain.key(*compilers.torch_flags(flags))[:32]


def _intact(file: CachedFile) -> bool:
    try:
        with open(file.path, "rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest() == file.sha256
    except OSError:
        return False


def path_in(cache_dir: str, folder: str, name: str) -> str:
    place = os.path.join(os.path.abspath(cache_dir), folder)
    os.makedirs(place, exist_ok=True)
    return os.path.join(place, name)


@contextlib.contextmanager
def _whole(path: str) -> Iterator[IO[bytes]]:
    """Opens a file that is there once all of it is written."""
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
    try:
        with os.fdopen(fd, "wb") as f:
            yield f
        os.chmod(temporary, 0o644)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def replace_file(path: str, data: bytes) -> None:
    with _whole(path) as f:
        f.write(data)


def _read(fd: int, offset: int) -> bytes:
    """Reads on in what another process made, who may have opened it for writing alone."""
    try:
        return os.pread(fd, 1 << 20, offset)
    except OSError as e:
        raise Failed("build_failed", f"what was built cannot be read: {e.strerror}") from e


def copy_into(fd: int, path: str, limit: int) -> str:
    """Copies what another process made, at most ``limit`` bytes, and returns its SHA-256."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise Failed("build_failed", "what was built is no file")
    digest, offset = hashlib.sha256(), 0
    with _whole(path) as f:
        while piece := _read(fd, offset):
            offset += len(piece)
            if offset > limit:
                raise Failed("build_failed", f"the built object is larger than {limit} bytes")
            digest.update(piece)
            f.write(piece)
    return digest.hexdigest()


def _sealed(data: bytes, name: str) -> int:
    # The kernel takes 249 bytes, and a letter may have four.
    fd = os.memfd_create(name[:60], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(fd, "wb", closefd=False) as f:
        f.write(data)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as f:
            value = json.load(f)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: str, value: dict[str, Any]) -> None:
    replace_file(path, json.dumps(value, separators=(",", ":")).encode())


def free(cache_dir: str) -> None:
    """Removes everything that was built and kept."""
    for name in ("objects", "builds", "facts"):
        shutil.rmtree(os.path.join(cache_dir, name), ignore_errors=True)
