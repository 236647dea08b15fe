"""What of the harness works on this machine, and what the absence of the rest costs."""

from __future__ import annotations

import os
import re
from typing import Any

import torch

import kernelwright
from kwharness.base.answers import Check, Compiler, Examined
from kwharness.base.configs import CandidateConfig
from kwharness.base.verdicts import SandboxReport
from kwharness.machine import toolchain
from kwharness.process.policy import SandboxError

DRIVER = "/proc/driver/nvidia/params"
CUTLASS = "set CUTLASS_PATH to a checkout of it"
PROFILER = (
    "the kernels of candidates are listed with their times, and nothing of what they do is measured"
)


def report(server: Any, mode: str) -> Examined:
    """Returns the sandbox's state, the compiler, torch with the CUDA that it was built for ("" for
    none), and a check for each.
    """
    checks: list[Check] = []

    def check(name: str, ok: bool, note: str, cost: str = "") -> None:
        checks.append(Check(name, ok, note, "" if ok else cost))

    missing: list[str] = []
    try:
        with server.spawn(CandidateConfig(mode)) as worker:
            missing = list(worker.missing)
        contained = True
        note = f"{mode}, complete" if not missing else f"{mode}, without {', '.join(missing)}"
    except SandboxError as e:
        contained, note = False, str(e)
    cost = (
        "candidates are contained less well, and each verdict says so"
        if contained
        else 'no candidate can run: sandbox = "weak" goes on without containment, and without '
        "a language model as Coder"
    )
    check("sandbox", contained and not missing, note, cost)
    compiler = toolchain.compiler()
    check(
        "compiler",
        bool(compiler),
        f"{compiler}, {toolchain.compiler_version()}" if compiler else "g++ was not found",
        "C++ candidates cannot be built and torch.compile is no baseline: install g++",
    )
    if toolchain.nvcc():
        ok, note = _cutlass()
        cost = f"candidates that include its headers cannot be built: {CUTLASS}"
        check("CUTLASS", ok, note, cost)
    if os.path.exists(DRIVER):
        check("profiler", *_profiler())
    vector = torch.backends.cpu.get_cpu_capability()
    check("torch", True, f"{torch.__version__}, {vector}, {torch.get_num_threads()} threads")
    return Examined(
        sandbox=SandboxReport(mode, missing),
        compiler=Compiler(compiler, toolchain.compiler_version()),
        torch=torch.__version__,
        cuda=torch.version.cuda or "",
        checks=checks,
    )


def _cutlass() -> tuple[bool, str]:
    """Returns whether CUTLASS_PATH names CUTLASS where it is set, and a note."""
    named, folders = os.environ.get("CUTLASS_PATH"), kernelwright.cutlass_folders()
    if folders:
        return True, f"{kernelwright.cutlass_version(folders)}, {os.path.dirname(folders[0])}"
    if named:
        return False, f"CUTLASS_PATH is {named}, where there is no include/cute/tensor.hpp"
    return True, f"not here, and needed by candidates in CuTe alone: {CUTLASS}"


def _profiler() -> tuple[bool, str, str]:
    """Returns whether Nsight Compute can measure in the sandbox as far as the machine tells, a
    note, and what it costs where it cannot, with what to do.

    Nobody is in the sandbox, so it is the same for root.
    """
    program = toolchain.ncu()
    try:
        with open(DRIVER, encoding="utf-8", errors="replace") as f:
            alone = re.search(r"RmProfilingAdminOnly: *([01])", f.read())
    except OSError:
        alone = None
    told = f"{DRIVER} has RmProfilingAdminOnly: {alone[1]}" if alone else ""
    read = told or f"{DRIVER} does not say who may read the driver's counters"
    closed = alone is not None and alone[1] == "1"
    todo = [] if program else ["install Nsight Compute"]
    if closed:
        todo.append(
            "load the driver with NVreg_RestrictProfilingToAdminUsers=0 (being root does not help: "
            "nobody is in the sandbox)"
        )
    note = f"{program or 'Nsight Compute (ncu) was not found'}; {read}"
    return not todo, note, f"{PROFILER}: {', and '.join(todo)}"
