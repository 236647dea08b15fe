"""Honest kernels pass on a GPU, too: every file of honest/cuda, as those of honest/kernels do.

Each is evaluated once, timed, and verified under the secret seeds of 3 more evaluations, or of 20.
Without a GPU each is built, and its reference runs on the CPU.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from evaluating import new_cache
from test_cuda_driver import SEES, gpu
from test_honest import Suite, parts

from kwharness.base.requests import Candidate
from kwharness.build import builder_client
from kwharness.machine import toolchain

KERNELS = {
    f.stem: f for f in sorted((pathlib.Path(__file__).parents[1] / "honest" / "cuda").glob("*.py"))
}
DAILY = 3
TIMES = 20
PACK = {"linear_packed"}
REPLAYED = {"graph_replayed"}
FORMS = ("native", "triton", "load_inline")
# Built by ``make soak`` alone: with all of torch's headers, and by nvcc, which takes five times as
# long as NVRTC, what is in the form of six others.
LONG_TO_BUILD = {
    "bfloat16_tensor_cores",
    "conv_depthwise_constant",
    "float4_tail",
    "group_norm_welford",
    "inline_rms_norm",
    "inline_swish_residual",
    "inline_two_functions",
    "int8_product",
    "layer_norm_in_shared",
    "linear_own_layout",
    "linear_softmax_addmm",
    "matmul_split_k_atomics",
    "nested_outputs",
    "scale_grid_sync",
}


def form_of(text: str) -> str:
    """Returns the form of a candidate's source, by what it imports."""
    return next(f for f in FORMS if f"import {f}" in text)


def needs_nvcc(text: str) -> bool:
    """Whether it has code for the host."""
    return "<<<" in text or "cudaLaunch" in text


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return new_cache(tmp_path_factory)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    place = {"minor": SEES["gpu"], "uuid": SEES["gpu_uuid"]}
    s = Suite(new_cache(tmp_path_factory), KERNELS, PACK, place)
    s.replayed = REPLAYED
    yield s
    s.server.close()


def test_there_are_enough() -> None:
    texts = [parts(path)[1] for path in KERNELS.values()]
    assert len(texts) >= 30
    assert {form_of(t) for t in texts} == set(FORMS)
    launched = [t for t in texts if form_of(t) == "native" and not needs_nvcc(t)]
    assert len(launched) >= 15 and sum(map(needs_nvcc, texts)) >= 8
    assert set(KERNELS) >= PACK | LONG_TO_BUILD | REPLAYED


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if n in LONG_TO_BUILD else []) for n in KERNELS],
)
def test_it_builds(server: Any, cache: str, name: str) -> None:
    text = parts(KERNELS[name])[1]
    if needs_nvcc(text) and not toolchain.nvcc():
        pytest.skip(toolchain.NO_NVCC)
    candidate = Candidate(text, "cpp")
    built = builder_client.build(
        server, candidate, cache, mode="weak", device="cuda", arch="sm_90a"
    )
    assert built.status == "", f"{built.reason} {built.build.log}"
    assert built.build.form == form_of(text)
    assert built.called or built.build.kernels


@pytest.mark.parametrize("name", KERNELS)
def test_its_reference_runs(name: str) -> None:
    space: dict[str, Any] = {}
    exec(compile(parts(KERNELS[name])[0], f"{name}.py", "exec"), space)
    torch.manual_seed(0)
    model = space["Model"](*space["get_init_inputs"]())
    with torch.no_grad():
        assert model(*space["get_inputs"]()) is not None


@gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", KERNELS)
def test_honest_passes(suite: Suite, name: str) -> None:
    known = {"calibration": suite.calibration(name, compiled=False)}
    suite.judged(name, "quick", "correct", known=known, time=True, want_baselines=["eager"])
    reasons = suite.refused(name, DAILY)
    assert not reasons, f"{len(reasons)} of {DAILY} times: {reasons[0]}"


@gpu
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_honest_passes_many_times(suite: Suite, name: str) -> None:
    reasons = suite.refused(name, TIMES)
    assert not reasons, f"{len(reasons)} of {TIMES} times: {reasons[0]}"
