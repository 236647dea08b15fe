"""What kernels do: whose they are, what they multiply, and how far from the GPU's limits."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kwharness.base.constants import SHARED
from kwharness.base.requests import Ceilings
from kwharness.base.verdicts import Kernel, KernelProfile, Profile
from kwharness.clients.errors import sentence
from kwharness.profile import ncu
from kwharness.profile.kernel_kinds import COPIES

MAX_KERNELS = 40  # that a profile names, the longest
_FLOPS = {"fadd": 1, "fmul": 1, "ffma": 2}
# By type of operand, and on most chips by that of the result, too. Sparse products, which have
# counters of their own besides, are in these.
_OPERATIONS = re.compile(
    r"sm__ops_path_tensor_src_([a-z]+\d+(?:_fp\d+)*)(?:_dst_fp\d+)?\.sum", re.ASCII
)
# Types that ceilings name otherwise. Shorter ones that are counted with float8 have its rate.
_OPERANDS = {"fp16": "float16", "bf16": "bfloat16", "fp8": "float8", "fp4_fp6_fp8": "float8"}
# Whose a kernel is that the candidate's compilers did not name, by its name.
_PYTORCH = re.compile(r"\bat::|\bc10::|at_cuda_detail|\bcub::|\btriton_(poi|red|per|tem|for)_")
_VENDOR = re.compile(
    r"nvjet|cutlass|cublas|cudnn|xmma|gemm|gemv|splitKreduce|winograd|implicit_convolve|"
    r"flash_fwd|fmha|nchwToNhwc|nhwcToNchw|convolve|\bfft|vector_fft|^(void )?dot_kernel|"
    r"reduce_1Block_kernel|scal_kernel|axpy_kernel",
    re.IGNORECASE,
)
OWN = re.compile(r"(\w+)\s*(?:[<(]|$)")


def whose(name: str, own: set[str], custom: bool) -> str:
    """Returns whose a kernel is: "custom", "vendor" or "pytorch". ``own``: names that the
    candidate's compilers gave; ``custom``: whether one that nobody knows is its own.
    """
    if name.startswith(COPIES):
        return "pytorch"
    if ncu.base(name) in own:
        return "custom"
    if _PYTORCH.search(name):
        return "pytorch"
    if _VENDOR.search(name):
        return "vendor"
    return "custom" if custom else "pytorch"


def operand(metric: str) -> str | None:
    """Returns of which type, as ceilings name it, a metric counts the tensor cores' operations;
    None for another metric.
    """
    m = _OPERATIONS.fullmatch(metric)
    return _OPERANDS.get(m[1], m[1]) if m else None


def operations_of(profile: Profile) -> dict[str, float]:
    """Returns the tensor cores' operations in a forward by type of operand; none where not all that
    were asked for are known.
    """
    if any(map(operand, profile.missing or ())):
        return {}
    found: dict[str, float] = {}
    for name, n in (profile.metrics or {}).items():
        if kind := operand(name):
            found[kind] = found.get(kind, 0.0) + n
    return found


def position(profile: Profile, ceilings: Ceilings, least_bytes: int) -> dict[str, float]:
    """Returns where a forward's kernels stand below the measured ceilings (docs/metrics.md)."""
    found: dict[str, float] = {}
    ms, has = profile.ms, profile.metrics or {}
    launches = sum(k.launches for k in profile.kernels or [])
    if launches:
        found["launches"] = float(max(launches, profile.launches))
    if ms <= 0:
        return found

    def rate(name: str, work: float | None, share: str, ceiling: float) -> None:
        if work is None:
            return
        found[name] = work / (1e6 * ms)
        if ceiling > 0:
            found[share] = found[name] / ceiling

    def total(*names: str) -> float | None:
        return sum(has[n] for n in names) if all(n in has for n in names) else None

    found["kernels_ms"] = ms
    dram = total("dram__bytes_read.sum", "dram__bytes_write.sum")
    rate("dram_gbs", dram, "dram_roof_share", ceilings.memory_gbs)
    # Not lts__t_bytes, in which is twice what one half of an L2 hands to the other.
    sectors = total("lts__t_sectors_srcunit_tex.sum")
    l2 = None if sectors is None else SHARED.sector_bytes * sectors
    rate("l2_gbs", l2, "l2_roof_share", ceilings.cache_gbs)
    executed = [f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in _FLOPS]
    flops = None
    if all(n in has for n in executed):
        flops = sum(w * has[n] for w, n in zip(_FLOPS.values(), executed, strict=True))
    rate("fp32_gflops", flops, "fp32_roof_share", ceilings.fp32_gflops)
    operations = operations_of(profile)
    rate("tensor_gflops", sum(operations.values()) if operations else None, "", 0.0)
    roofs = ceilings.tensor_gflops
    counted = {t: n for t, n in operations.items() if n > 0}
    busy = has.get("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active")
    if counted and all(roofs.get(t, 0.0) > 0 for t in counted):
        found["tensor_roof_share"] = sum(n / (1e6 * ms * roofs[t]) for t, n in counted.items())
    elif busy is not None:
        found["tensor_roof_share"] = busy / 100
    if dram is not None and least_bytes > 0:
        found["dram_bytes_ratio"] = dram / least_bytes
    return found


def static_profile(said_by: Sequence[Kernel], why: str) -> Profile:
    """Returns what the compiler says, as a profile."""
    kernels = [
        KernelProfile(
            name=k.name[: ncu.MAX_NAME],
            whose="custom",
            launches=0,
            ms=0.0,
            share=0.0,
            grid=[0, 0, 0],
            block=[0, 0, 0],
            metrics={
                "launch__registers_per_thread": float(k.registers),
                "launch__shared_mem_per_block_static": float(k.shared_bytes),
            },
        )
        for k in said_by[:MAX_KERNELS]
    ]
    return Profile("static", 0, 0.0, sentence(why), kernels)
