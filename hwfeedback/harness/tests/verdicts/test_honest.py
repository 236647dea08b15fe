"""Honest kernels pass: every file of honest/kernels, a reference and an honest candidate for it.

Each is evaluated once, and verified under the secret seeds of one more evaluation while build,
calibration and processes stay. ``make soak`` has 20 whole evaluations of each, timed, and the
certificate against all baselines.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest
from evaluating import evaluate, fork_server, new_cache, processes_of

from kwharness.base.calibration import Calibration
from kwharness.base.constants import SHARED
from kwharness.build import source
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.reference_client import ReferenceClient
from kwharness.model.construction import CONSTRUCTION_SEED
from kwharness.referee import called, construction_seeds
from kwharness.referee.builds import Builds
from kwharness.referee.program import Program
from kwharness.referee.trial import Trial
from kwharness.verify import verify
from kwharness.verify.calibrate import calibrate
from kwharness.verify.findings import Failed

KERNELS = {
    f.stem: f
    for f in sorted((pathlib.Path(__file__).parents[1] / "honest" / "kernels").glob("*.py"))
}
DAILY = 2  # evaluations, of five secret seeds each
TIMES = 20
THREADS = 2  # sums over threads are honest, too
# They keep what they made of the first weights that they saw, so each time is a new process.
PACK = {"linear_packed"}
# How weights are known of those where it is not by their names.
WEIGHTS = {
    "state_beside_a_folded_norm": "by seed",
    "weights_fold_a_norm": "by seed",
    "weights_fold_a_norm_in_place": "by seed",
    "weights_fold_a_norm_into_a_convolution": "by seed",
    "weights_fold_what_was_copied": "by seed",
    "weights_in_int8": "by seed",
    "weights_of_a_spectral_norm": "by seed",
    "weights_of_a_weight_norm": "by seed",
    "weights_of_two_layers_in_one": "by seed",
    "weights_times_a_temperature": "by seed",
    "weights_with_joined_biases": "by seed",
    "weights_of_a_shared_module": "by value",
    "weights_of_three_in_one": "by value",
    "weights_square_transposed": "by value",
    "weights_tied_once": "by value",
    "weights_transposed": "by value",
    "weights_with_names_swapped": "by value",
    "weights_with_lora_merged": "by seed",
}
# Whose weights share what every construction gives them: it is moved, and so taken for granted by
# nobody. Nor are buffers that come of the seed.
GRANTED_NOTHING = {"weights_fold_what_was_copied", "weights_of_a_spectral_norm"}
# What the check of timed calls could misjudge: ties, kept buffers, containers, ill-conditioning,
# state, and inputs that are written into.
TIMED = {
    "add_norm_in_place",
    "argmax_last",
    "mean_variance_dict",
    "nested_outputs",
    "output_transposed",
    "rotary_in_place",
    "sin_of_large",
    "softmax_split",
    "solve_pivoting",
    "state_in_a_rebuilt_tuple",
    "state_ring",
    "transposed_in_place",
    "weights_fold_a_norm",  # all is constructed anew before it
}


# At the top of a file, but for the candidate alone.
OWN = re.compile(
    r"^(from kernelwright import native|from torch\.utils\.cpp_extension import load_inline"
    r"|import triton.*|from triton.*)\n",
    re.M,
)


def parts(path: pathlib.Path) -> tuple[str, str]:
    """Returns reference and candidate; the imports at the top are for both."""
    return parts_of(path.read_text())


def parts_of(text: str) -> tuple[str, str]:
    """Returns reference and candidate of a file's text."""
    head, rest = text.split("class Model(", 1)
    model, candidate = rest.split("# The candidate.\n", 1)
    return f"{OWN.sub('', head)}class Model({model}", head + candidate


class Suite:
    """A fork server, and what was calibrated with it."""

    def __init__(
        self,
        cache: str,
        kernels: Mapping[str, pathlib.Path] = KERNELS,
        pack: Collection[str] = PACK,
        gpu: dict[str, Any] | None = None,
    ) -> None:
        """``gpu`` is what a request names a GPU by; None: the CPU."""
        self.place: dict[str, Any] = {} if gpu is None else {"gpu": gpu, "device": "cuda:0"}
        self.server = fork_server(gpu=gpu is not None)
        self.cache, self.kernels, self.pack = cache, kernels, pack
        self.replayed: Collection[str] = ()  # whose custom code only a CUDA graph calls
        self.calibrations: dict[tuple[str, bool], Any] = {}

    def request(self, name: str, level: str, **more: Any) -> dict[str, Any]:
        reference, candidate = parts(self.kernels[name])
        return {
            "task": {
                "fingerprint": source.normalised_hash(reference),
                "name": name,
                "source": reference,
                "flags": [],
            },
            "candidate": {"source": candidate, "language": "cpp"},
            "level": level,
            "threads": THREADS,
            "cache_dir": self.cache,
            "specs": {"l3_bytes": 8 << 20},
            **self.place,
            **more,
        }

    def calibration(self, name: str, *, compiled: bool) -> Any:
        """What calibration says. Without torch.compile it is quick, and stricter."""
        key = (name, compiled)
        if key not in self.calibrations:
            reference = self.reference(name, compiled)
            try:
                self.calibrations[key] = calibrate(reference, want_compile=compiled).to_json()
            finally:
                reference.kill()
        return self.calibrations[key]

    def reference(self, name: str, compiled: bool) -> ReferenceClient:
        processes = processes_of(self.server, self.request(name, "quick"))
        return processes.reference(compiles=compiled, timeout=300)

    def judged(self, name: str, level: str, wanted: str, **more: Any) -> dict[str, Any]:
        """Evaluates a kernel and returns what was learned of its task."""
        answer = evaluate(self.server, self.request(name, level, **more))
        v = answer["verdict"]
        said = f"{v['status']}: {v['reason']} {v['evidence']} {v['build'].get('log', '')}"
        assert v["status"] == wanted, said
        assert v["weights"] == WEIGHTS.get(name, "by name"), said
        assert name not in GRANTED_NOTHING or not v["assumes"], v["assumes"]
        assert v["metrics"]["custom_calls"] > 0 or name in self.replayed
        assert not any(e.startswith("it ") for e in v["evidence"]), "it tried nothing: " + said
        return answer["learned"]

    def refused(self, name: str, times: int) -> list[str]:
        """Verifies a kernel again and again. Returns why it was not believed, where it was not."""
        known = self.calibration(name, compiled=False)
        calibration = Calibration.from_json(known)
        assert calibration is not None
        processes = processes_of(self.server, self.request(name, "quick"))
        processes.calibration = calibration
        candidate = processes.context.request.candidate
        program = Program(candidate.source, candidate.source)
        program.build = Builds(processes.context).build(candidate, lambda _: None)
        reference = processes.reference(compiles=False)
        trial = Trial(processes, program, reference, calibration)
        original, by_seed = reference.state(), False
        workers: list[CandidateClient] = []
        reasons: list[str] = []

        def fresh() -> CandidateClient:
            return trial.candidate(poison=True)

        try:
            for _ in range(times):
                if not by_seed:
                    reference.set_state(original)
                    trial.draw()
                if program.built.called and not workers:
                    called.add_kernels(trial, program)
                if not workers or name in self.pack or by_seed:
                    trial.made.seed = CONSTRUCTION_SEED
                    # By the seed both are constructed anew.
                    workers.append(construction_seeds.first(trial, lambda: None))
                    by_seed = trial.plan.by_seed
                else:
                    workers[-1].set_state(reference.info.names, trial.made.state)
                try:
                    verify.run(trial.verification, workers[-1], fresh)
                except Failed as failed:
                    reasons.append(str(failed))
        finally:
            for w in [*workers, reference]:
                w.kill()
        return reasons


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    s = Suite(new_cache(tmp_path_factory, objects=True))
    yield s
    s.server.close()


def test_there_are_enough() -> None:
    assert len(KERNELS) >= 50
    assert set(KERNELS) >= PACK | TIMED | set(WEIGHTS)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.alone] if n in TIMED else []) for n in KERNELS],
)
def test_honest_passes(suite: Suite, name: str) -> None:
    known = {"calibration": suite.calibration(name, compiled=False)}
    timed = name in TIMED
    suite.judged(name, "quick", "correct", known=known, time=timed, want_baselines=["eager"])
    reasons = suite.refused(name, DAILY - 1)
    assert not reasons, f"{len(reasons)} of {DAILY - 1} times: {reasons[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_honest_passes_whole_evaluations(suite: Suite, name: str) -> None:
    known = {"calibration": suite.calibration(name, compiled=True)}
    for _ in range(TIMES):
        learned = suite.judged(name, "quick", "correct", known=known, want_baselines=["eager"])
        known |= learned
    suite.judged(name, "certify", "certified", known=known, want_baselines=SHARED.baselines)
