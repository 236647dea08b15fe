"""The file that a candidate's user gets: written at certify, and run by itself in a new
interpreter, as its user runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from kwharness.base.configs import Place
from kwharness.base.verdicts import Launch, Verdict
from kwharness.build import builder_client
from kwharness.export import describe, file_facts
from kwharness.machine import device as devices
from kwharness.machine import toolchain
from kwharness.machine.device import Device
from kwharness.model import construction, weights
from kwharness.numerics import families
from kwharness.referee import faults
from kwharness.referee.builds import Builds
from kwharness.referee.kernel_facts import KernelFacts
from kwharness.referee.program import Program
from kwharness.referee.trial import Trial
from kwharness.standalone import calls, interpreter, sanitizers, usage
from kwharness.verify import findings

COMPILE_S = 300.0  # its constructor may compile
SANITIZED = 6  # findings of a sanitizer that are shown
# The profiler's time of a call and the clock's differ by less, or that is said.
SPAN_SHARE, SPAN_MS = 0.1, 0.002


@dataclass
class Run:
    """The file in its interpreter, and the draw that it was given."""

    running: interpreter.Running
    tree: Any
    inputs: list[torch.Tensor]


class ExportedFile:
    """The candidate as its user gets it."""

    def __init__(self, program: Program, builds: Builds, *, company: bool) -> None:
        """``company``: whether it may run while the candidate is verified."""
        self.program = program
        self.builds = builds
        self.company = company
        self.had_company = False  # whether it runs so at the moment
        self.text = ""
        self.looked: interpreter.Looked | None = None  # what was seen of it
        self._makes = True  # its constructor makes the reference's weights
        self._run: Run | None = None

    def write(self, trial: Trial, tried: Mapping[families.Shape, bool] | None = None) -> None:
        """From here on the candidate is the standalone file that its user gets: first one that
        takes any shape, until it is known which of them it is right on (``tried``).
        """
        context, program, verification = trial.context, self.program, trial.verification
        about = describe.about(
            context.request,
            trial.reference.constructed,
            program.plan or weights.Plan(weights.BY_NAME, True),
            (verification.draws[0].tree, verification.oracle.inputs),
            verification.oracle.outputs,
            tried,
            trial.reference.orders,
            made=self._makes,
        )
        mode = context.request.workplace.sandbox
        with context.costs.part("export"):
            try:
                self.text = builder_client.export(context.server, program.text, mode, about)
            except ValueError as e:
                raise faults.Fault("crashed", f"it cannot be exported: {e}") from e
        program.source = self.text
        if not program.handed_out:
            made = program.workshop.made if program.workshop is not None else []
            program.handed_out = True
            program.workshop = self.builds.workshop(program.text, made, whole=True)

    def leaves_the_rebuild(self, trial: Trial) -> bool:
        """Exports it without the reference's constructor, with which it fails, or which does not
        make there what it makes in the reference. Returns whether it did: not where the candidate
        makes the weights by itself, or was exported so before.
        """
        plan = self.program.plan
        if not self._makes or plan is None or not plan.to_rebuild:
            return False
        self._makes = False
        self.write(trial, trial.verification.tried)
        trial.verification.report.evidence.append(
            "constructed alone, the exported file has other weights than the reference, and says so"
        )
        return True

    # It runs.

    def begin_beside(self, trial: Trial) -> None:
        """Starts it while the candidate is verified, where it may, and is not large."""
        context = trial.context
        size = trial.input_bytes + trial.output_bytes
        wanted = self.company and context.rules.runs_standalone
        if wanted and not context.compilers_disturb() and context.memory.runs_beside(size):
            self.begin(trial, beside=True)

    def begin(self, trial: Trial, *, beside: bool = False) -> None:
        """Starts it by itself, in a new interpreter. ``beside``: while it is verified."""
        if calls.lacking(self.program.form):
            return
        context, verification = trial.context, trial.verification
        with context.costs.part("cold"):
            tree, inputs = verification.unseen()
            call = self._call(trial, tree, inputs, verification.oracle.outputs)
            if beside and interpreter.is_large(call):  # by its weights
                return
            running = interpreter.Running(
                context.server,
                self.text,
                call,
                context.request.workplace.sandbox,
                COMPILE_S + trial.eagers_s,
                context.limits(),
                toolchain.compute_sanitizer() if context.device.sanitized else "",
                fewer=beside or verification.small is not None,
            )
            self._run = Run(running, tree, inputs)
            self.had_company = beside

    def close(self) -> None:
        """Ends it."""
        if self._run is not None:
            self._run.running.close()

    def _call(
        self,
        trial: Trial,
        tree: Any,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> interpreter.Call:
        context, reference, plan = trial.context, trial.reference, trial.plan
        return interpreter.Call(
            (reference.constructed.init, reference.init),
            plan.given(reference.info.names, trial.made.state),
            (tree, inputs),
            (trial.verification.oracle.output_tree, outputs),
            context.eval_mode,
            context.threads,
            Place(**context.request.workplace.placed()),
            reference.orders,
            seed=trial.made.seed,
            breaks=reference.constructed.breaks,
            own=not plan.whole,
            carried=reference.carried,
            use=self._use(trial),
        )

    def _use(self, trial: Trial) -> calls.Use:
        """Says how its users use it. Of a large task the ways are not tried, each of which calls it
        once more.
        """
        info, plan, verification = trial.reference.info, trial.plan, trial.verification
        constructed: dict[str, str] = {}
        rebuilt: dict[str, str] = {}
        if self._makes or not plan.to_rebuild:
            at = plan.as_constructed()
            constructed = {n: construction.digest_of(verification.original[i]) for n, i in at}
        if self._makes and plan.to_rebuild:
            made = zip(info.names, verification.original, strict=True)
            rebuilt = {n: construction.digest_of(t) for n, t in made}
        takes = (
            (info.forward, verification.draws[0].tree),
            (info.constructor, trial.reference.constructed.init),
        )
        forward, constructor = (
            file_facts.names_of(file_facts.signature(said), len(tree["list"]))
            for said, tree in takes
        )
        size = trial.input_bytes + trial.output_bytes + sum(t.nbytes for t in trial.made.state)
        ways = trial.context.memory.tries_ways(size)
        return calls.Use(constructor, forward, constructed, rebuilt, plan.way, ways)

    # It is judged.

    def check(self, trial: Trial, facts: KernelFacts, v: Verdict) -> None:
        """Judges what it computes, and has it looked at."""
        context, evidence = trial.context, trial.verification.report.evidence
        lacks = calls.lacking(self.program.form)
        if lacks:
            evidence.append(f"not run by itself in a new interpreter: {lacks} is not there")
            return
        context.progress("verify", "in a new interpreter")
        devices.tidy(context.device)
        trial.reference.set_state(trial.made.state)
        if context.device.sanitized and not toolchain.compute_sanitizer():
            evidence.append("not run under compute-sanitizer: it is not there")
        facts.add(v)
        own = [k.name for k in v.build.kernels or []]
        if self._run is None:
            self.begin(trial)
        with self._ends(context.device):
            ways = self._computes(trial, own)
        self.had_company = False  # what fails from here on had none
        evidence.append(usage.TRIED if ways else usage.UNTRIED)
        self._add_checks(trial)
        if context.device.profiled and self.looked is not None and not self.looked.launches:
            evidence.append("what it launches is not known: a profiler saw nothing")

    @contextmanager
    def _ends(self, device: Device) -> Iterator[None]:
        """Ends it whatever comes, and turns its failures into Faults."""
        try:
            yield
        except interpreter.Broken as e:
            raise faults.of_exported_file(e, has_driver=device.has_driver) from e
        except findings.Failed as e:
            raise faults.Fault(e.status, f"{faults.STANDALONE}, is wrong: {e}", e.hint) from e
        finally:
            self.close()
            self._run = None

    def _computes(self, trial: Trial, own: Sequence[str]) -> bool:
        """Compares what it computes, and returns whether it was tried in its users' ways. ``own``
        are its kernels.
        """
        run = self._begun()
        try:
            outputs = run.running.outputs()
        except interpreter.Broken:
            run.running.close()
            if not self.leaves_the_rebuild(trial):
                raise
            self.begin(trial)
            run = self._begun()
            outputs = run.running.outputs()
        running, small = run.running, trial.verification.small
        self._built_as_judged(trial, running.built)
        self.looked = running.looked(self._call(trial, *small) if small else None, own)
        running.close()  # there may be no room for both
        trial.verification.check_unseen(run.tree, run.inputs, outputs)
        return bool(running.ways)

    def _begun(self) -> Run:
        assert self._run is not None  # nothing is lacking
        return self._run

    def _built_as_judged(self, trial: Trial, built: Sequence[tuple[str, str]]) -> None:
        """Raises a Fault where its own loader has built something else than what was judged: from
        the same text, by the same command. What nvcc makes of code for the host is never the same.
        """
        ending = trial.context.device.object_ending
        judged = {a.loaded for a in self.program.artifacts()}
        if any(kind == ending and what not in judged for kind, what in built):
            raise faults.Fault(
                "rejected",
                f"{faults.STANDALONE}, builds something else of its source than was evaluated: "
                "its compiler reads a file or a variable that is not in the source",
                "put all that the source needs into its text",
            )

    def _add_checks(self, trial: Trial) -> None:
        """Raises a Fault for what compute-sanitizer finds on the task's own inputs."""
        looked, verification = self.looked, trial.verification
        assert looked is not None  # it was just now
        trial.context.costs.moved(looked.checks_s, "sanitizers")
        first = verification.small[1] if verification.small else verification.oracle.inputs
        few, whole = (
            ", ".join(str(list(t.shape)) for t in i) for i in (first, verification.oracle.inputs)
        )
        verification.report.evidence += sanitizers.told(looked.checks, few)
        for c in looked.checks:
            if c.convicts:
                raise faults.Fault(
                    "wrong",
                    f"compute-sanitizer's {c.tool} finds on inputs of {whole}: {c.findings[0]}",
                    sanitizers.HINTS[c.tool],
                    [f"{c.tool}: {f}" for f in c.findings[:SANITIZED]],
                )

    def add_launches(self, v: Verdict) -> None:
        """Adds what a profiler saw of it: that explains, and decides nothing."""
        ran = self.looked
        if ran is None or not ran.launches:
            return
        v.work.launches = [
            Launch(a.name, a.count, a.ms, list(a.grid), list(a.block)) for a in ran.launches
        ]
        v.metrics["launches"] = float(sum(launch.count for launch in ran.launches))
        ms = v.candidate_ms
        if ms <= 0 or ran.span_ms <= 0:
            return
        v.timing.candidate.span_ms = ran.span_ms
        if abs(ran.span_ms - ms) > SPAN_SHARE * ms + SPAN_MS:
            v.timing.note(
                f"a profiler in a new interpreter sees {1e3 * ran.span_ms:.1f} us from a call's "
                f"first kernel to the end of its last, the clock {1e3 * ms:.1f} us"
            )
