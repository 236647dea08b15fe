"""What a spawn may ask for: a role, its settings, and what is imported before."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace

from kwharness.process import policy, worker_start
from kwharness.process.messages import Spawn

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


def wanted(asked: Spawn) -> policy.Settings:
    """Returns the settings of the worker that a spawn asks for. Raises ValueError for none of a
    known role.
    """
    if asked.role not in worker_start.MODULES:
        raise ValueError(f"unknown role {asked.role!r:.40}")
    given = asked.settings
    return replace(
        given,
        profile=asked.role,
        mode="weak" if given.mode == "weak" else "strict",
        threads=max(1, given.threads),
        gpu_uuid=given.gpu_uuid[:80],
    )


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
