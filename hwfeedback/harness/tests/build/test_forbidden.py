"""Policy: what is rejected where custom code is required, and judged where it is not."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from evaluating import Evaluator

from kwharness.attribution import trace
from kwharness.base.for_candidate import Spent, Traced
from kwharness.base.requests import Candidate, Request
from kwharness.build import builder_client, object_cache
from kwharness.referee import called
from kwharness.referee.context import Context
from kwharness.referee.program import Program
from kwharness.referee.trial import give_libraries
from kwharness.torch_compile import called_cache, inductor, program_answers

TASK = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + 1


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return []
"""
HEAD = """import torch
import torch.nn as nn


{before}def work(x):
    return torch.clamp(x, min=0) * 2 + 1


class ModelNew(nn.Module):
    def forward(self, x):
        return work(x)
"""
REWRITE = HEAD.format(before="")
SCRIPTED = HEAD.format(before="@torch.jit.script\n")
COMPILED = HEAD.format(before="@torch.compile\n")
WRONG = REWRITE.replace("* 2 + 1", "* 2")
THREADS = REWRITE.replace(
    "        return work", "        torch.set_num_threads(2)\n        return work"
)


def verdict(evaluator: Evaluator, text: str, **more: Any) -> dict[str, Any]:
    more = {"known": evaluator.calibration(TASK), "time": False, "custom_code": "required", **more}
    return evaluator.ask("evaluate", evaluator.request(TASK, text, "quick", more))["verdict"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (REWRITE, "it has no custom code"),
        (SCRIPTED, "torch.jit.script is not allowed"),
        (COMPILED, "torch.compile is not allowed"),
    ],
    ids=["rewrite", "scripted", "compiled"],
)
def test_where_custom_code_is_required_it_is_rejected(
    evaluator: Evaluator, text: str, said: str
) -> None:
    v = verdict(evaluator, text)
    assert v["status"] == "rejected" and said in v["reason"], v["reason"]
    assert v["speedup"] is None and v["candidate_ms"] == 0


@pytest.mark.parametrize("text", [REWRITE, SCRIPTED], ids=["rewrite", "scripted"])
@pytest.mark.parametrize("how", [{"custom_code": "any"}, {"explain": True}], ids=["any", "explain"])
def test_where_anything_may_do_the_work_it_is_judged(
    evaluator: Evaluator, text: str, how: dict[str, Any]
) -> None:
    v = verdict(evaluator, text, **how)
    assert v["status"] == "correct", v["reason"]
    assert v["work"]["pytorch"] == 1.0 and v["work"]["custom"] == 0.0
    assert len(v["correctness"]["families"]) > 5


@pytest.mark.parametrize("how", [{}, {"custom_code": "any"}, {"explain": True}])
def test_what_is_wrong_is_wrong_under_every_policy(
    evaluator: Evaluator, how: dict[str, Any]
) -> None:
    assert verdict(evaluator, WRONG, **how)["status"] == "wrong"


def test_what_torch_compile_makes_is_judged(evaluator: Evaluator) -> None:
    """It compiles in a worker that may start programs, and the others are given what it made."""
    v = verdict(evaluator, COMPILED, custom_code="any")
    assert v["status"] == "correct", (v["reason"], v["evidence"])
    assert v["work"]["compiled"] > 0.5 and v["work"]["custom"] == 0.0, v["work"]
    assert [o["kind"] for o in v["work"]["operators"]][:1] == ["compiled"]
    assert not any("sandbox refuses" in e for e in v["evidence"])  # nobody else had to


@pytest.mark.alone
def test_more_cores_are_a_breach_that_can_be_explained(evaluator: Evaluator) -> None:
    """Its time is known all the same; whether two cores are free here is another matter."""
    v = verdict(evaluator, THREADS, time=True, want_baselines=["eager"], explain=True)
    assert v["status"] in ("correct", "cheated"), v["reason"]
    assert v["status"] == "cheated" or v["candidate_ms"] > 0


def test_regions_are_told_apart_and_policy_goes_by_the_rest() -> None:
    apart = {trace.GRAPH: Spent(0.3, 1), trace.INDUCTOR: Spent(0.6, 2), "anything": Spent(9.0, 1)}
    seen = Traced(1.0, {"copy_": Spent(0.1, 1)}, {}, apart, 0.0, {})
    shown, _ = trace.report(seen, False, regions=True)
    assert (shown.graph, shown.compiled) == (pytest.approx(0.3), pytest.approx(0.6))
    assert shown.pytorch == pytest.approx(0.1)
    asked, calls = trace.report(seen, False)
    assert asked.pytorch == 1.0 and calls == 0 and asked.graph is asked.compiled is None


def test_the_replay_of_a_graph_is_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without a GPU, with a replay that takes time."""
    x = torch.randn(1 << 16)

    def replay(_: Any) -> None:
        x.clone().sort()

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", replay)

    def forward() -> None:
        torch.cuda.CUDAGraph.replay(None)  # type: ignore[arg-type]
        x.view(-1)

    apart = trace.regions(compiled=False)
    assert set(apart) == {trace.GRAPH}
    seen = trace.observe(forward, {}, None, apart)
    assert seen.regions[trace.GRAPH].calls == 1 and seen.native == {}


def test_programs_answer_as_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", subprocess.run)  # put back what is patched here
    monkeypatch.setattr(program_answers, "_noted", {})
    asked = [sys.executable, "-c", "print('version 1')"]
    fails = [sys.executable, "-c", "raise SystemExit(3)"]
    program_answers.note()
    assert subprocess.check_output(asked) == b"version 1\n"
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.check_output(fails)
    told = program_answers.noted()
    started: list[Any] = []

    def nothing(command: Any, **_: Any) -> Any:
        started.append(command)
        raise PermissionError("no program may be started")

    monkeypatch.setattr(subprocess, "run", nothing)
    program_answers.answer(told)
    assert subprocess.check_output(asked) == b"version 1\n"
    assert subprocess.run(asked, text=True, capture_output=True).stdout == "version 1\n"
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.check_output(fails)
    assert not started
    with pytest.raises(PermissionError):
        subprocess.run(["another"])
    assert started == [["another"]]


def test_a_program_may_be_named_by_a_path() -> None:
    named = program_answers._key(["/usr/bin/true", "x"])
    assert program_answers._key([pathlib.Path("/usr/bin/true"), "x"]) == named != ""
    assert program_answers._key(pathlib.Path("/usr/bin/true")) == program_answers._key(
        "/usr/bin/true"
    )
    assert program_answers._key(b"/usr/bin/true") == program_answers._key([b"/usr/bin/true"]) == ""


def test_libraries_of_inductor_come_beside_the_archive(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(made))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(program_answers, "_noted", {})
    (made / "ab").mkdir(parents=True)
    (made / "ab" / "k.main.so").write_bytes(b"machine code")
    (made / "ab" / "k.py").write_text("x = 1")
    (made / "ab" / "elsewhere").symlink_to("/etc/hostname")
    assert called_cache.libraries() == {"inductor/ab/k.main.so": str(made / "ab" / "k.main.so")}
    data = called_cache.packed()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "given"))
    archive = tmp_path / "archive"
    archive.write_bytes(data)
    with archive.open("rb") as f:
        called_cache.unpack(f.fileno(), forbids=True)
        assert not (tmp_path / "given").exists()
        f.seek(0)
        called_cache.unpack(f.fileno())
    assert sorted(p.name for p in (tmp_path / "given" / "ab").iterdir()) == ["k.py"]
    with (made / "ab" / "k.main.so").open("rb") as f:
        called_cache.link("inductor/ab/k.main.so", f.fileno())
        assert (tmp_path / "given" / "ab" / "k.main.so").read_bytes() == b"machine code"
        called_cache.link("elsewhere/k.so", f.fileno())  # in no folder of ours
    assert not (tmp_path / "elsewhere").exists()


def test_who_may_compile_is_told_by_the_text() -> None:
    assert inductor.compiles(COMPILED) and not inductor.compiles(REWRITE)
    assert json.loads(program_answers.noted()) == {}


CALLED_AT_IMPORT = '''import torch
from kernelwright import native

kernel = native("""
extern "C" void work(float *y, const float *x, long n) {
    for (long i = 0; i < n; i++) y[i] = (x[i] > 0 ? x[i] : 0) * 2 + 1;
}
""")


@torch.compile
def doubled(x):
    return x * 2


ONES = doubled(torch.ones(8))


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel.work(y, x, x.numel())
        return y * (ONES[0] - 1)
'''


def test_an_explanation_changes_no_later_verdict(evaluator: Evaluator) -> None:
    """Of a candidate that compiles when it is imported: policy decides, whatever came before."""
    first = verdict(evaluator, CALLED_AT_IMPORT)
    assert first["status"] == "rejected", first["reason"]
    free = verdict(evaluator, CALLED_AT_IMPORT, explain=True)
    assert free["status"] == "correct", (free["reason"], free["evidence"])
    again = verdict(evaluator, CALLED_AT_IMPORT)
    assert (again["status"], again["reason"]) == (first["status"], first["reason"])


def test_what_compiles_at_import_is_tried_where_it_may(evaluator: Evaluator) -> None:
    """One of its sources does not compile, so it is imported before it is judged."""
    caught = "try:\n    native('nonsense', name='other')\nexcept Exception:\n    pass\n\n\n"
    text = CALLED_AT_IMPORT.replace("@torch.compile", caught + "@torch.compile")
    v = verdict(evaluator, text, custom_code="any")
    assert v["status"] == "correct", (v["reason"], v["evidence"])


def test_nothing_is_kept_of_what_is_tried_for_an_explanation(evaluator: Evaluator) -> None:
    text = Candidate(REWRITE + "# a text of its own\n")
    for keeps, cached in ((False, False), (True, False), (False, True)):
        built = builder_client.build(evaluator.server, text, evaluator.cache, keeps=keeps)
        assert (built.status, built.build.cached) == ("", cached)
    other = builder_client.build(evaluator.server, text, evaluator.cache, forbids=True)
    assert not other.build.cached


def test_what_is_compiled_by_calling_it_is_of_how_it_was_called(evaluator: Evaluator) -> None:
    """Code of inductor's has its number of threads in it."""
    program = Program(COMPILED, COMPILED)

    def key(**more: Any) -> str:
        request = evaluator.request(TASK, COMPILED, "quick", {"custom_code": "any", **more})
        return called.key_of(Context(evaluator.server, Request.from_json(request)), program)

    others = [{"threads": 2}, {"precision": "tf32"}, {"custom_code": "required"}]
    keys = [key(), *(key(**more) for more in others)]
    assert len(set(keys)) == len(keys) and key() == key()


def test_an_explanation_leaves_nothing_that_was_compiled(evaluator: Evaluator) -> None:
    text = COMPILED + "# nobody has called this text\n"

    def there() -> set[str]:
        cache = pathlib.Path(evaluator.cache)
        kept = [*cache.glob("builds/*"), *cache.glob("objects/*"), *cache.glob(".explained*")]
        return {str(p) for p in kept}

    before = there()
    assert verdict(evaluator, text, explain=True)["status"] == "correct"
    assert there() == before


@pytest.mark.parametrize("custom", ["required", "any"])
def test_policy_says_who_is_given_what_torch_compile_made(
    evaluator: Evaluator, tmp_path: pathlib.Path, custom: str
) -> None:
    """A process that may compile can make libraries whatever it was told."""
    given: list[str] = []

    class Client:
        def give_libraries(self, libraries: list[tuple[str, int]]) -> None:
            given.extend(name for name, _ in libraries)

    fd = os.memfd_create("made")
    try:
        kept = object_cache.keep_kernels(str(tmp_path), "key", fd, {"inductor/ab/k.so": fd})
    finally:
        os.close(fd)
    request = evaluator.request(TASK, COMPILED, "quick", {"custom_code": custom})
    context = Context(evaluator.server, Request.from_json(request))
    give_libraries(context, Client(), [kept])  # type: ignore[arg-type]
    assert given == (["inductor/ab/k.so"] if custom == "any" else [])
