"""What a spawn may ask for: a role, its settings, and what is imported before."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Sequence
from typing import Any

from kwharness.process import policy, worker_start

# Costly imports that start no thread, done in the server when a worker first asks, so that its
# successors have them.
PREIMPORTS = {
    "compile": (
        "torch._dynamo",
        "torch._inductor.compile_fx",
        "torch._dynamo.backends.inductor",
        "torch._dynamo.repro.after_dynamo",
        "torch._inductor.bounds",
        "torch._inductor.choices",
        "torch._inductor.codegen.cpp_wrapper_cpu",
        "torch.utils.cpp_extension",
    ),
    # What a first compilation for a GPU imports besides: a second, where Python has not kept them
    # compiled.
    "compile_gpu": (
        "sympy.physics.units",
        "torch._dynamo.backends.cudagraphs",
        "torch._inductor.codegen.cpp_wrapper_gpu",
        "torch._inductor.codegen.cuda_combined_scheduling",
        "torch._inductor.codegen.pallas",
        "torch._inductor.fx_passes.fuse_attention",
        "torch._inductor.fx_passes.quantization",
        *(f"torch._inductor.fx_passes.serialized_patterns._sfdp_pattern_{n}" for n in range(1, 28)),
        "torch._inductor.runtime.caching",
        "torch._inductor.runtime.triton_heuristics",
        "torch.distributed.tensor.experimental",
        "torch.export._trace",
        "torch.fx.experimental.validator",
        "triton.compiler.code_generator",
        "triton.tools.tensor_descriptor",
    ),
    "extension": ("torch.utils.cpp_extension",),
    # What operators are taken apart with, where rounding is simulated.
    "noise": (
        "sympy",
        "torch.fx.experimental.symbolic_shapes",
        "torch._dynamo",
        "torch.utils.flop_counter",
    ),
}


def wanted(msg: dict[str, Any]) -> tuple[policy.Settings, list[str]]:
    """Returns what a spawn asks for: its settings, and what to import for it before. Raises
    ValueError for what is no such request.
    """

    def texts(value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ValueError(f"no list of texts: {value!r:.40}")
        return value

    def number(value: Any) -> int:
        if type(value) not in (int, float) or not 0 <= value < 1 << 62:
            raise ValueError(f"no limit: {value!r:.40}")
        return int(value)

    role, given = msg.get("role"), msg.get("settings") or {}
    if not isinstance(role, str) or role not in worker_start.MODULES:
        raise ValueError(f"unknown role {role!r:.40}")
    if not isinstance(given, dict) or not isinstance(given.get("limits") or {}, dict):
        raise ValueError(f"no settings: {given!r:.40}")
    if not isinstance(msg.get("config") or {}, dict):
        raise ValueError(f"no config: {msg['config']!r:.40}")
    settings = policy.Settings(
        profile=role,
        mode="weak" if given.get("mode") == "weak" else "strict",
        read_only=texts(given.get("read_only") or []),
        threads=number(given.get("threads") or 1),
        limits={k: number(v) for k, v in (given.get("limits") or {}).items() if v},
        gpu=None if given.get("gpu") is None else number(given["gpu"]),
        gpu_uuid=str(given.get("gpu_uuid") or "")[:80],
        tools=given.get("tools") is True,
    )
    return settings, texts(given.get("preimport") or [])


def preimport(names: Sequence[str]) -> None:
    """Imports a named group of modules. Raises ValueError for an unknown name."""
    before = tempfile.tempdir
    tempfile.tempdir = "/tmp"  # torch keeps its name; whatever TMPDIR says is not there in a worker
    try:
        for name in names:
            if name not in PREIMPORTS:
                raise ValueError(f"unknown preimport {name!r:.40}")
            for module in PREIMPORTS[name]:
                with contextlib.suppress(ImportError):  # private modules move between versions
                    importlib.import_module(module)
    finally:
        tempfile.tempdir = before
