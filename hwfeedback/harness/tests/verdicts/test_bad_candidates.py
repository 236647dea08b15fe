"""Candidates that ask for too much, or are half of something: each is named in a sentence, bounded,
and its neighbours are unharmed.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from evaluating import Evaluator
from test_extensions import BROKEN, FORWARD, SOURCE, TASK, candidate

from kwharness.build import build_process
from kwharness.clients import workshop
from kwharness.export import inline_loader
from kwharness.machine import toolchain
from kwharness.referee import trial

pytestmark = pytest.mark.skipif(not toolchain.compiler(), reason="there is no g++ here")

HONEST = candidate("self.lib = native(source=SOURCE)")


def verdict(evaluator: Evaluator, text: str, **more: Any) -> dict[str, Any]:
    """Returns the verdict on a candidate, after which an honest one passes and nobody is left."""
    v = evaluator.verdict(TASK, text, built=True, **more)
    assert v["reason"].isprintable() and len(v["reason"]) <= 600
    assert evaluator.verdict(TASK, HONEST, built=True)["status"] == "correct"
    end = time.monotonic() + 120
    while evaluator.server.ping().workers > 1 and time.monotonic() < end:
        time.sleep(0.1)  # the reference's process is kept
    assert evaluator.server.ping().workers <= 1
    return v


def test_only_the_fifth_compiles(evaluator: Evaluator) -> None:
    init = "self.lib = None\n"
    for i in range(4):
        init += f"try:\n    self.lib = self.lib or native(source='#error {i}\\n' + SOURCE)\n"
        init += "except RuntimeError:\n    pass\n"
    v = verdict(evaluator, candidate(init + "self.lib = self.lib or native(source=SOURCE)"))
    assert v["status"] == "correct"
    assert "#error 0" in v["reason"] and "3 more of its extensions are not built" in v["reason"]


EACH_CALL = """
    calls = 0

    def forward(self, x):
        self.calls += 1
        lib = native(source=SOURCE{more})
        x = x.contiguous()
        y = torch.empty_like(x)
        lib.f(x, y, x.numel())
        return y
"""


def test_one_that_asks_in_each_call_is_given_the_same(evaluator: Evaluator) -> None:
    v = verdict(evaluator, candidate("pass", EACH_CALL.format(more="")))
    assert v["status"] == "correct", v["reason"]


def test_one_that_builds_anew_in_each_call(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workshop, "MAX_ASKED", 6)
    text = candidate("pass", EACH_CALL.format(more=" + f'// {self.calls}'"))
    v = verdict(evaluator, text)
    assert v["status"] == "rejected"
    assert (
        "asks for over 6 different builds: build once, and keep what you are given" in v["reason"]
    )
    assert any("after its first forward" in e for e in v["evidence"])


def test_fifty_extensions(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshop, "MAX_OBJECTS", 4)
    init = "self.libs = [native(source=f'{SOURCE}// {i}') for i in range(50)]\n"
    v = verdict(evaluator, candidate(init + "self.lib = self.libs[0]"))
    assert v["status"] == "rejected" and "it builds over 4 objects" in v["reason"]
    libs = "lib = [native(source=f'{SOURCE}// {i}') for i in range(50)][0]\n\n\n"
    v = verdict(evaluator, candidate("self.lib = lib", top=libs))
    assert v["status"] == "rejected" and "it builds over 4 objects" in v["reason"]


@pytest.mark.slow
def test_so_many_may_be_built(evaluator: Evaluator) -> None:
    most = range(workshop.MAX_OBJECTS)
    init = f"self.libs = [native(source=f'{{SOURCE}}// {{i}}') for i in {most}]\n"
    v = verdict(evaluator, candidate(init + "self.lib = self.libs[-1]"))
    assert v["status"] == "correct", v["reason"]


def test_a_constructor_that_takes_long(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "LOAD_S", 3.0)
    text = candidate("import time\ntime.sleep(3600)\nself.lib = native(source=SOURCE)")
    v = evaluator.verdict(TASK, text, built=True)
    assert v["status"] == "timed_out" and "constructing ModelNew took over 3 s" in v["reason"]


def test_what_is_built_for_a_constructor_is_not_its_time(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "LOAD_S", 3.0)
    real = build_process._compile

    def slow(*given: Any) -> Any:
        time.sleep(4)
        return real(*given)

    monkeypatch.setattr(build_process, "_compile", slow)
    v = evaluator.verdict(
        TASK, candidate("self.lib = native(source=SOURCE + '// slow')"), built=True
    )
    assert v["status"] == "correct", v["reason"]
    assert v["cost_s"]["build"] > 4 and v["build"]["seconds"] > 4


ENDLESS = """
constexpr long sum() { long s = 0; for (long i = 0; i < 1L << 60; i++) s += i & 3; return s; }
constexpr long total = sum();
"""
FLAGS = ("-fconstexpr-loop-limit=2147483647", "-fconstexpr-ops-limit=9223372036854775807")


@pytest.mark.parametrize("where", ["top", "constructor"])
def test_a_compilation_that_does_not_end(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    evaluator.verdict(TASK, HONEST, built=True)  # which is built by now
    monkeypatch.setattr(build_process, "COMPILE_TIMEOUT", 2.0)
    call = f"native(source={ENDLESS!r} + SOURCE, flags={FLAGS!r})"
    text = candidate(f"self.lib = {call}")
    if where == "top":
        text = candidate("self.lib = lib", top=f"lib = {call}\n\n\n")
    v = verdict(evaluator, text)
    assert v["status"] == "timed_out" and "it took longer than 2 s" in v["reason"]


def test_who_catches_everything_is_judged_as_what_runs(evaluator: Evaluator) -> None:
    init = f"try:\n    {BROKEN}\nexcept (KeyboardInterrupt, SystemExit, BaseException):\n    pass\n"
    v = verdict(evaluator, candidate(init + "self.lib = native(source=SOURCE)"))
    assert v["status"] == "correct" and v["reason"].startswith("native does not compile")


def halves() -> list[str]:
    lines = inline_loader.standalone(HONEST).split("\n")
    loader = next(
        i for i, line in enumerate(lines) if line.startswith(f"def {inline_loader.LOADER}")
    )
    model = next(i for i, line in enumerate(lines) if line.startswith("class ModelNew"))
    cuts = [lines[: len(lines) // 2], lines[len(lines) // 2 :], lines[:model], lines[: model + 1]]
    cuts.append([*lines[:loader], *lines[model - 12 :]])
    return ["\n".join(cut) for cut in cuts]


@pytest.mark.parametrize("i", range(5))
def test_half_of_an_exported_file(evaluator: Evaluator, i: int) -> None:
    v = verdict(evaluator, halves()[i])
    assert v["status"] in ("build_failed", "rejected", "crashed"), v["reason"]
    named = ("not valid Python", "defines no", "NameError", "SyntaxError", "IndentationError")
    assert any(n in v["reason"] for n in named), v["reason"]


def test_the_whole_of_it_passes(evaluator: Evaluator) -> None:
    assert FORWARD in HONEST and SOURCE in HONEST
    assert verdict(evaluator, inline_loader.standalone(HONEST))["status"] == "correct"


OUTSIDE = """
import os
for attempt in (lambda: open("/usr/lib/left-behind", "w"), lambda: os.unlink("/usr/lib/os-release"),
                lambda: os.kill(1, 0)):
    try:
        attempt()
    except OSError:
        pass
"""


def test_who_tries_to_write_outside_or_to_signal_others_is_told_so(evaluator: Evaluator) -> None:
    """The candidate and the reference each; nothing comes of it, and of honest ones nothing."""
    files = "/usr/lib/left-behind (to change it), /usr/lib/os-release (to change it)"
    said = [
        "tried what the sandbox refuses: kill",
        f"asked for files that are not its own: {files}",
    ]
    of_candidate = evaluator.verdict(TASK, OUTSIDE + HONEST, built=True)
    assert of_candidate["status"] == "correct"
    assert [e for e in of_candidate["evidence"] if e.startswith("it ")] == [f"it {s}" for s in said]
    of_reference = evaluator.verdict(OUTSIDE + TASK, HONEST, built=True)
    assert of_reference["status"] == "correct"
    told = [e for e in of_reference["evidence"] if "tried" in e or "asked for" in e]
    assert len(told) == 2 and told[0].startswith(f"the reference {said[0]}"), told
    assert told[1].startswith("the reference asked for files that are not its own: ")
    assert all(f in told[1] for f in ("left-behind", "os-release"))
    honest = evaluator.verdict(TASK, HONEST, built=True)
    assert not [e for e in honest["evidence"] if "tried" in e or "asked for" in e]
