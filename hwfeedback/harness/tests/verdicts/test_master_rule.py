"""The master rule: eager, compiled, and eager by another algorithm pass on every example.

A few of the examples run every day, all of them at both levels in ``make soak``. Timing is
out: it cannot make an honest candidate wrong, and it takes most of an evaluation.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from evaluating import evaluate, new_cache, processes_of

from kwharness.base.calibration import Calibration
from kwharness.build import source
from kwharness.clients.candidate_client import Answer
from kwharness.clients.reference_client import ReferenceClient
from kwharness.process.fork_client import ForkServer
from kwharness.verify import verify
from kwharness.verify.calibrate import calibrate
from kwharness.verify.verification import Verification

EXAMPLES = pathlib.Path(__file__).parents[4] / "examples"
HONEST = pathlib.Path(__file__).parents[1] / "honest"
NAMES = sorted(p.stem for p in EXAMPLES.glob("*.py"))
# One of each kind of output: indices, a single number, floating.
DAILY = ["argmax", "cross_entropy", "linear_gelu"]

EAGER = "\n\nclass ModelNew(Model):\n    pass\n"


@dataclass
class Bench:
    """A fork server, and what was calibrated with it."""

    server: Any
    cache: str
    calibrations: dict[str, Any]

    def request(self, name: str, candidate: str, level: str) -> dict[str, Any]:
        text = (EXAMPLES / f"{name}.py").read_text()
        # As inspection says of the one example that behaves otherwise in train mode.
        flags = ["train_mode_dependent"] if name == "batch_norm_relu" else []
        task = {
            "fingerprint": source.normalised_hash(text),
            "name": name,
            "source": text,
            "flags": flags,
        }
        return {
            "task": task,
            "candidate": {"source": candidate, "language": "cpp"},
            "level": level,
            "threads": len(os.sched_getaffinity(0)),
            "sandbox": "weak",
            "cache_dir": self.cache,
            "require_custom": False,
            "time": False,
        }

    def calibrated(self, name: str) -> Any:
        """What calibration says of an example, asked once."""
        if name not in self.calibrations:
            reference = self.reference(name)
            try:
                self.calibrations[name] = calibrate(reference).to_json()
            finally:
                reference.kill()
        return self.calibrations[name]

    def reference(self, name: str) -> ReferenceClient:
        processes = processes_of(self.server, self.request(name, "", "quick"))
        return processes.reference(compiles=True, timeout=300)

    def verdict(self, name: str, candidate: str, level: str) -> dict[str, Any]:
        request = self.request(name, candidate, level)
        request["known"] = {"calibration": self.calibrated(name)}
        return evaluate(self.server, request)["verdict"]


@pytest.fixture(scope="module")
def bench(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(server, new_cache(tmp_path_factory), {})


class Compiled:
    """A reference worker in the place of a candidate's: what torch.compile makes of the reference.

    A candidate may not compile by itself, so this is how the compiled reference becomes one.
    """

    def __init__(self, reference: ReferenceClient, mode: str) -> None:
        self.reference = reference
        self.mode = mode
        self._result: dict[str, Any] = {}

    def begin_forward(
        self,
        tree: Any,
        inputs: Any,
        _outputs: Any,
        _output_tree: Any,
        _aliases: Any,
        *,
        goes_on: bool = False,
    ) -> None:
        self.reference.begin_forward(tree, inputs, [self.mode])

    def finish_forward(self) -> Answer:
        self.wait_forward()
        return self.answer()

    def wait_forward(self) -> None:
        self._result = self.reference.finish_forward()[0]
        if self._result.error is not None:
            raise self._result.error

    def answer(self) -> Answer:
        return Answer(self._result.tensors, "", [], False)

    def set_state(self, _names: Any, state: list[torch.Tensor], *, in_place: bool = False) -> bool:
        self.reference.set_state(state)
        return True

    def holds(self) -> int:
        return self.reference.holds()

    def let_go(self) -> None:
        self.reference.let_go()


def eager_passes(bench: Bench, name: str, level: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    expect(bench.verdict(name, text + EAGER, level), level)


def other_algorithm_passes(bench: Bench, name: str, level: str) -> None:
    expect(bench.verdict(name, (HONEST / f"{name}.py").read_text(), level), level)


def compiled_passes(bench: Bench, name: str, level: str) -> None:
    calibration = Calibration.from_json(bench.calibrated(name))
    assert calibration is not None
    for mode in ["compile"] if level == "quick" else ["compile", "max-autotune"]:
        reference, candidate = bench.reference(name), bench.reference(name)
        try:
            verification = Verification(reference, calibration, level)
            verification.prepare()
            candidate.set_state(verification.state)
            report = verify.run(verification, Compiled(candidate, mode))  # type: ignore[arg-type]
            explained(report.to_json()["families"])
        finally:
            reference.kill()
            candidate.kill()


def expect(verdict: dict[str, Any], level: str) -> None:
    wanted = "certified" if level == "certify" else "correct"
    assert verdict["status"] == wanted, verdict["reason"]
    explained(verdict["correctness"]["families"])


def explained(families: list[dict[str, Any]]) -> None:
    """An advisory family says why it is one."""
    assert families, "nothing was compared"
    assert families[0]["name"] == "base" and families[0]["gates"]
    for f in families:
        assert f["gates"] or f["note"], f"{f['name']} is advisory and does not say why"


HONEST_FORMS: dict[str, Callable[[Bench, str, str], None]] = {
    "eager": eager_passes,
    "compiled": compiled_passes,
    "other_algorithm": other_algorithm_passes,
}


def test_every_example_has_another_algorithm() -> None:
    assert sorted(p.stem for p in HONEST.glob("*.py")) == NAMES
    assert set(DAILY) <= set(NAMES)


@pytest.mark.parametrize("form", HONEST_FORMS)
@pytest.mark.parametrize("name", DAILY)
def test_honest_passes(bench: Bench, name: str, form: str) -> None:
    HONEST_FORMS[form](bench, name, "quick")


@pytest.mark.slow
@pytest.mark.parametrize("level", ["quick", "certify"])
@pytest.mark.parametrize("form", HONEST_FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_honest_passes_everywhere(bench: Bench, name: str, form: str, level: str) -> None:
    HONEST_FORMS[form](bench, name, level)
