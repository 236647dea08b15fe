"""Stands in for the compiler that an exported file runs."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import kernelwright


def stand_in_for_the_compiler(objects: Any) -> None:
    """The loader in an exported file runs the compiler, which this sandbox forbids: give it what
    the builder made, or makes, of the same source (``objects`` is artifacts.Objects).
    """
    from kwharness.build import form_native
    from kwharness.build.form import NATIVE, BuildFailed

    real = subprocess.run

    def run(command: list[str], **more: Any) -> Any:
        asked = _asked_for(command, more)
        if asked is None:
            return real(command, **more)  # another program's: Triton starts some
        source, flags, language = asked
        try:
            request = form_native.request_of(source, flags, NATIVE, language)
            found = objects.path(request)
        except BuildFailed as e:
            return subprocess.CompletedProcess(command, 1, "", str(e))
        os.symlink(found, os.path.join(more["cwd"], "built.so"))
        return subprocess.CompletedProcess(command, 0, "", "")

    subprocess.run = run  # type: ignore[assignment]


def _asked_for(command: Any, more: dict[str, Any]) -> tuple[str, list[str], str] | None:
    """Returns what the loader of an exported file would have compiled by this call of
    ``subprocess.run``: source, flags, language. None for any other call: what the builder makes is
    what this command makes wherever the file is used.
    """
    words = command if isinstance(command, list) else []
    language = next((k for k, n in kernelwright.FILES.items() if n in words), "")
    if not language or more.keys() != {"cwd", "env", "capture_output", "text"}:
        return None
    at = command.index(kernelwright.FILES[language])
    ours: tuple[str, ...] = kernelwright.FLAGS
    if language == "cuda":
        ours = kernelwright.CUBIN_FLAGS if "-cubin" in command else kernelwright.CUDA_FLAGS
        ours = (*ours, kernelwright._gencode())
    launched = "-cubin" in ours
    with open(os.path.join(more["cwd"], command[at]), encoding="utf-8") as f:
        source = f.read()
    flags = tuple(command[len(ours) + 1 : at])
    linked: list[str] = []
    if language == "cuda":
        if not launched:
            source = source.removesuffix(kernelwright._CUDA_TAIL)
            linked = kernelwright._cuda_runtime()
        if kernelwright.cutlass_header(source):  # its headers are not here
            flags = flags[len(kernelwright.CUTLASS_FLAGS) :]
    exact = (
        tuple(command[1 : len(ours) + 1]) == ours
        and flags == kernelwright._of_this_machine(flags, language)
        and command[at + 1 :] == [*linked, "-o", "built.so"]
        and more["env"] == {**os.environ, **kernelwright.FIXED}
    )
    return (source, list(flags), language) if exact else None
