from __future__ import annotations

import dataclasses
import math
import mmap
import os
import pathlib
import random
import tempfile
from collections.abc import Sequence
from typing import Any

import forked
import pytest
import torch
from evaluating import LLC, busy
from forked import Forked

from kwharness.base import stats
from kwharness.base.verdicts import Measurement, Speedup
from kwharness.machine import device
from kwharness.timing import (
    baselines,
    budgets,
    candidate_visits,
    clocks,
    device_timing,
    measurement,
    rounds,
    timing,
    turns,
    window_base,
    window_runner,
    window_samples,
    window_session,
    window_worker,
)

SHAPE = (64, 64)


def check(
    inputs: list[torch.Tensor], outputs: list[torch.Tensor], expected: list[torch.Tensor]
) -> str | None:
    assert all(len(i) == len(o) for i, o in zip(inputs, outputs, strict=True))
    same = all(torch.equal(o, e) for o, e in zip(outputs, expected, strict=True))
    return None if same else "an output differs"


class Spawner:
    """Starts workers, and notes which of them lived at the same time."""

    def __init__(self, makes: dict[str, forked.Make]) -> None:
        self.makes = makes
        self.workers: list[tuple[str, Forked]] = []
        self.mixed = False
        self.most = 0  # that lived at the same time

    def __call__(self, name: str) -> Forked:
        self.most = max(self.most, 1 + sum(not w.killed for _, w in self.workers))
        if name != "candidate":
            alive = [n for n, w in self.workers if not w.killed]
            self.mixed = self.mixed or "candidate" in alive
        self.workers.append((name, Forked(self.makes[name])))
        return self.workers[-1][1]

    def candidate(self) -> Forked:
        return self("candidate")

    def count(self, name: str) -> int:
        return sum(n == name for n, _ in self.workers)


def short(level: str) -> budgets.Budget:
    less = {"candidate_s": 0.2, "visit_s": 0.02, "solo_s": 0.05, "rounds_s": 0.0}
    return dataclasses.replace(device_timing.BUDGETS[level], **less)


def time_it(
    makes: dict[str, forked.Make],
    level: str = "quick",
    varied: tuple[Any, window_runner.CheckVaried] | None = None,
    **options: Any,
) -> tuple[timing.Timed, Spawner, timing.Timing]:
    spawner = Spawner(makes)
    draw = forked.draw(SHAPE)
    options = {"want": ["eager"], "llc_bytes": LLC, **options}
    t = timing.Timing(
        draw=draw,
        outputs=draw(0),
        check=check,
        spawn_baseline=spawner,
        level=level,
        threads=1,
        budget=short(level),
        **options,
    )
    t.prepare()
    if varied is not None:
        t.vary(*varied)
    timed = t.measure(spawner.candidate)
    assert all(w.killed for _, w in spawner.workers)
    assert not spawner.mixed
    return timed, spawner, t


@pytest.mark.alone
def test_quick_measures_baselines_once_and_then_uses_them() -> None:
    makes = {
        "eager": forked.spinning(0.004),
        "compile": forked.spinning(0.003),
        "candidate": forked.spinning(0.005),  # no win: that one could be doubted
    }
    timed, _, first = time_it(makes, want=["eager", "compile"])
    assert timed.wrong is None and timed.speedup is not None
    assert set(timed.speedups) == {"eager", "compile"}
    assert timed.speedup.value == min(s.value for s in timed.speedups.values())
    assert timed.speedup.low <= timed.speedup.value <= timed.speedup.high
    assert timed.report.protocol == "baselines measured just before"
    assert set(timed.report.candidate.to_json()) == {
        "median_ms", "p25_ms", "p75_ms", "low_ms", "high_ms", "repetitions", "clock", "event_ms",
        "wall_ms",
    }  # fmt: skip
    assert timed.report.candidate.median_ms > 0.9

    again, spawner, _ = time_it(
        makes, want=["eager", "compile"], known=timed.records, contents=first.contents
    )
    stood = spawner.count("compile") == 0
    assert stood or any("again" in n for n in again.report.notes)
    assert (again.report.protocol == "cached baselines") == stood
    assert set(again.records) == {"eager", "compile"}


@pytest.mark.parametrize(
    ("ns", "least", "most"), [(6_000, 1.06, 1.08), (50_000, 1.005, 1.01), (1e6, 1.0, 1.001)]
)
def test_how_far_two_processes_lie_apart(ns: float, least: float, most: float) -> None:
    fresh = [window_samples.Sample("fresh", 4, ns, ns, 0.0, False, turns=True) for _ in range(5)]
    assert least < measurement.of_a_process(fresh) < most
    alone = [dataclasses.replace(s, turns=False, alone=True) for s in fresh]
    assert 1.3 < measurement.of_a_process(alone) < 1.35


@pytest.mark.alone
@pytest.mark.parametrize(("seconds", "wins"), [(0.004, False), (0.001, True)])
def test_a_machine_that_becomes_quiet_invents_no_win(
    monkeypatch: pytest.MonkeyPatch, seconds: float, wins: bool
) -> None:
    """Everything takes three times as long until the candidate is there for the first time."""
    loud = mmap.mmap(-1, 1)
    loud[0] = 1

    def machine(seconds: float, calms: bool = False) -> forked.Make:
        def make() -> Any:
            loud[0] = loud[0] and not calms

            def forward(args: list[torch.Tensor]) -> list[torch.Tensor]:
                out = args[0] * 2.0
                forked.busy(seconds * (3 if loud[0] else 1))
                return [out]

            return forward

        return make

    real = clocks.assess_clocks
    monkeypatch.setattr(
        clocks, "assess_clocks", lambda *args: dataclasses.replace(real(*args), noisy=True)
    )
    monkeypatch.setattr(candidate_visits, "WATCHED_PROCESSES", 1)
    makes = {"eager": machine(0.004), "candidate": machine(seconds, calms=True)}
    timed, spawner, _ = time_it(makes)
    assert timed.speedup is not None
    assert wins or timed.speedup.low <= 1.05, timed.speedup
    if timed.report.protocol != "interleaved":  # too loud for a win that turns could confirm
        assert timed.speedup.low <= 1, timed.speedup
        pytest.skip(f"not measured, the machine is busy: {timed.report.notes}")
    assert spawner.count("candidate") == 1 + rounds.QUICK_ROUNDS + 1  # which is watched
    assert not wins or timed.speedup.value > 2, timed.speedup


@pytest.mark.alone
def test_certify_interleaves_new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "NARROW", -1.0)  # no interval is: the time decides
    monkeypatch.setattr(budgets, "WINDOW_NS", 4_000_000)
    monkeypatch.setattr(candidate_visits, "WATCHED_PROCESSES", 1)
    makes = {
        "eager": forked.spinning(0.003),
        "compile": forked.spinning(0.0101),
        "candidate": forked.spinning(0.001),
    }
    timed, spawner, _ = time_it(makes, "certify", want=["eager", "compile"])
    assert timed.wrong is None and timed.speedup is not None
    assert timed.report.protocol == "interleaved"
    assert timed.speedup.value == min(s.value for s in timed.speedups.values())
    assert spawner.count("candidate") == turns.ROUNDS + 1  # which is watched
    assert set(timed.speedups) == {"eager", "compile"}


@pytest.mark.alone
@pytest.mark.parametrize("room", [True, False])
def test_large_contents_are_one_workers_at_a_time(
    monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """Processes of baselines stay, without contents, where they have little memory."""
    monkeypatch.setattr(rounds, "NARROW", -1.0)
    monkeypatch.setattr(turns, "SLOW_SPAWN_S", 0.0)  # they are slow to start, and stay
    monkeypatch.setattr(turns, "STAYS_S", 0.0)
    monkeypatch.setattr(turns, "ASIDE_BYTES", 1 << 60 if room else -(1 << 60))
    draw = forked.draw(SHAPE)
    slots = window_base.Slots.of(draw(0), draw(0))
    contents = window_session.Redrawn(slots, draw, lambda inputs: [inputs[0] * 2.0])
    makes = {n: forked.spinning(0.001) for n in ("eager", "compile", "candidate")}
    opened: list[Any] = []

    class Seen(window_session.Session):
        def __init__(self, worker: window_session.TimedWorker, *given: Any, **more: Any) -> None:
            assert all(w.killed for w in opened), "another one has its blocks"
            super().__init__(worker, *given, **more)
            opened.append(worker)

        def close(self) -> None:
            super().close()
            opened.remove(self.worker)

    monkeypatch.setattr(window_runner, "Session", Seen)
    timed, spawner, _ = time_it(makes, "certify", want=["eager", "compile"], contents=contents)
    assert timed.wrong is None and timed.report.protocol == "interleaved"
    assert timed.speedup is not None
    if room:
        assert spawner.count("compile") <= 4 and 1 < spawner.most <= 3
    else:
        assert spawner.count("compile") >= 2 * rounds.LARGE_ROUNDS and spawner.most == 1


@pytest.mark.alone
@pytest.mark.parametrize("kept", [0, 8 << 30])
def test_what_the_reference_keeps_is_no_baselines(
    monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(rounds, "NARROW", -1.0)
    monkeypatch.setattr(turns, "SLOW_SPAWN_S", 0.0)
    monkeypatch.setattr(turns, "STAYS_S", 0.0)
    free = [64 << 30]
    monkeypatch.setattr(device.Cpu, "room", lambda _: (free[0], 80 << 30))
    draw = forked.draw(SHAPE)
    slots = window_base.Slots.of(draw(0), draw(0))

    def eager(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        free[0] = (64 << 30) - kept  # its first answer is in blocks that stay
        return [inputs[0] * 2.0]

    makes = {n: forked.spinning(0.001) for n in ("eager", "compile", "candidate")}
    contents = window_session.Redrawn(slots, draw, eager)
    _, spawner, _ = time_it(makes, "certify", want=["eager", "compile"], contents=contents)
    assert (spawner.count("eager"), spawner.count("compile")) == (2, 3)


@pytest.mark.alone
def test_a_candidate_that_is_right_only_at_first_is_found() -> None:
    def make() -> window_base.Forward:
        calls = 0

        def forward(args: list[torch.Tensor]) -> list[torch.Tensor]:
            nonlocal calls
            calls += 1
            return [args[0] * 2 if calls < 30 else torch.zeros_like(args[0])]

        return forward

    timed, _, _ = time_it({"eager": forked.spinning(0.0005), "candidate": make})
    assert timed.wrong is not None and "an output differs" in timed.wrong
    assert timed.speedup is None and timed.report.candidate.median_ms == 0


def hiding(share: float) -> forked.Make:
    """A worker of 5 ms a call whose own clock shows this share of them."""

    def make() -> window_base.Forward:
        honest = window_base.now_ns
        start = honest()
        window_worker._calls.__defaults__ = (lambda: int(start + (honest() - start) * share),)
        return forked.spinning(0.005)()

    return make


@pytest.mark.alone
def test_work_hidden_from_the_workers_clock_is_found() -> None:
    timed, _, _ = time_it({"eager": forked.spinning(0.005), "candidate": hiding(0.01)})
    assert timed.wrong is None and timed.speedup is not None
    assert timed.speedup.low <= 1.05, timed.speedup
    notes = timed.report.notes
    if busy(notes):
        pytest.skip(f"not measured, the machine is busy: {notes}")
    c = timed.report.candidate
    assert timed.report.marked and c.clock == "wall"
    assert c.event_ms < 1 < 4 < c.median_ms
    assert "work is hidden from the clock" in timed.hides


@pytest.mark.alone
def test_what_a_clock_may_be_off_by_wins_nothing() -> None:
    timed, _, _ = time_it({"eager": forked.spinning(0.005), "candidate": hiding(0.92)})
    assert timed.speedup is not None and not timed.hides
    assert timed.speedup.low <= 1.05, timed.speedup


@pytest.mark.alone
def test_another_algorithm_for_timed_calls_is_found() -> None:
    def make() -> window_base.Forward:
        # Right on what is drawn, wrong on the large numbers of verification.
        return lambda args: [torch.where(args[0].abs() < 100, args[0] * 2, torch.nan)]

    large = [[torch.full(SHAPE, 1e4)], [torch.full(SHAPE, 2e4)]]

    def right(i: int, outputs: list[torch.Tensor]) -> str | None:
        return None if torch.equal(outputs[0], 2 * large[i][0]) else f"varied {i} differs"

    makes = {"eager": forked.spinning(0.001), "candidate": make}
    timed, _, _ = time_it(makes, varied=(large, right))
    assert timed.wrong is not None and "differs" in timed.wrong and "varied" in timed.wrong
    makes["candidate"] = forked.spinning(0.001)
    timed, _, _ = time_it(makes, varied=(large, right))
    assert timed.wrong is None and timed.speedup is not None


@pytest.mark.alone
def test_a_candidate_that_fails_is_not_a_measurement() -> None:
    with pytest.raises(window_base.CallFailed, match="division"):
        time_it({"eager": forked.spinning(0.001), "candidate": lambda: lambda args: [1 // 0]})


@pytest.mark.alone
def test_eager_that_fails_is_no_candidates_fault() -> None:
    with pytest.raises(timing.BaselineFailed, match="division"):
        time_it({"eager": lambda: lambda args: [1 // 0], "candidate": forked.spinning(0.001)})


@pytest.mark.alone
def test_eager_whose_process_ends() -> None:
    makes = {"eager": lambda: lambda args: os._exit(3), "candidate": forked.spinning(0.001)}
    with pytest.raises(timing.BaselineFailed, match="its process ended itself with exit code 3"):
        time_it(makes)


@pytest.mark.alone
def test_a_baseline_that_fails_in_its_turn_is_no_candidates_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budgets, "WINDOW_NS", 4_000_000)

    def make() -> window_base.Forward:
        def forward(args: list[torch.Tensor]) -> list[torch.Tensor]:
            if broken.exists():
                raise RuntimeError("out of luck")
            return [args[0] * 2]

        return forward

    with tempfile.TemporaryDirectory() as folder:
        broken = pathlib.Path(folder) / "broken"

        def candidate() -> window_base.Forward:
            broken.touch()
            return lambda args: [args[0] * 2]

        with pytest.raises(timing.BaselineFailed, match="out of luck"):
            time_it({"eager": make, "candidate": candidate}, "certify")


@pytest.mark.alone
def test_a_baseline_that_fails_is_left_out() -> None:
    timed, _, _ = time_it(
        {
            "eager": forked.spinning(0.002),
            "compile": lambda: lambda args: [1 // 0],
            "candidate": forked.spinning(0.001),
        },
        want=["eager", "compile"],
    )
    assert set(timed.speedups) == {"eager"}
    assert any("compile could not be timed" in n for n in timed.report.notes)


# Decisions, on made-up samples.


def samples(
    kind: str,
    n: int,
    event: float,
    *,
    outer: float | None = None,
    cpu: float = 0.0,
    disturbed: bool = False,
) -> list[window_samples.Sample]:
    rng = random.Random(n)
    made = []
    for _ in range(n):
        f = math.exp(rng.gauss(0, 0.01))
        wall = event if outer is None else outer
        made.append(window_samples.Sample(kind, 8, event * f, wall * f + 50_000, cpu, disturbed))
    return made


def calibrated() -> window_samples.Overhead:
    walls = {k: [49_000.0, 50_000.0, 51_000.0] for k in ("fresh", "chained")}
    return window_samples.Overhead(walls)


def judged(
    *parts: Sequence[window_samples.Sample], usual: window_samples.Alone | None = None
) -> clocks.Assessed:
    visits = window_samples.Visits([[s for p in parts for s in p]])
    return clocks.assess_clocks(visits, calibrated(), usual or window_samples.Alone())


def test_clocks_that_agree() -> None:
    found = judged(samples("fresh", 12, 1e6), samples("chained", 3, 1.3e6))
    assert (found.clock, found.marked, found.notes) == ("event", False, [])


def test_clocks_that_disagree() -> None:
    found = judged(samples("fresh", 12, 1e6, outer=1.3e6))
    assert found.clock == "wall" and found.marked


def test_a_wall_clock_below_the_workers_never_decides() -> None:
    # Its calibration is off then: who claims more time than was spent gains nothing.
    found = judged(samples("fresh", 12, 1e6, outer=0.6e6))
    assert found.clock == "event" and not found.marked


def test_one_launch_for_the_whole_batch() -> None:
    chained = samples("chained", 3, 2e6)
    assert judged(samples("fresh", 12, 1e6), chained).doubtful
    assert not judged(
        samples("fresh", 12, 1e6), chained, usual=window_samples.Alone(1.6, 6e5)
    ).marked
    # Its own clock may say what it likes.
    chained = samples("chained", 3, 1e4, outer=5e4)
    assert judged(samples("fresh", 12, 1e4), chained).doubtful


def test_what_a_call_takes_more_that_comes_alone() -> None:
    eager = [*samples("fresh", 12, 1e5), *samples("chained", 3, 2.5e5)]
    usual = window_samples.Alone.of(eager)
    assert usual.ratio == pytest.approx(2.5, rel=0.02)
    assert usual.more_ns == pytest.approx(1.5e5, rel=0.02)
    # Waking a core costs a short call as much as a long one: it loses nothing by it.
    alone = [dataclasses.replace(s, cost=5e4) for s in samples("chained", 3, 1.6e5)]
    short = judged(samples("fresh", 12, 3e4), alone, usual=usual)
    assert short.alone == 1.0 and not short.marked
    # One that does all its work in the first call of a batch does it alone as well.
    shared = judged(samples("fresh", 12, 1.3e4), samples("chained", 3, 2.5e5), usual=usual)
    assert shared.alone < 0.2


def test_calls_that_wake_a_core_late_cost_no_win() -> None:
    fresh = samples("fresh", 12, 1e6)
    late = [1.5e6 if i % 2 else 0.0 for i in range(16)]
    waking = [window_samples.Sample("chained", 1, 1e6, 1.05e6 + more, 0.0, False) for more in late]
    assert judged(fresh, waking).alone > 0.98
    every = [window_samples.Sample("chained", 1, 1e6, 2.55e6, 0.0, False) for _ in late]
    assert judged(fresh, every).alone < 0.6


def one_by_one(seed: int) -> list[window_samples.Sample]:
    """Windows of a forward of 70 us that waits for the GPU. Waking a process takes 150 us, and one
    time in five 300 more: of single calls that is now and then, of windows of eight always some.
    """
    rng = random.Random(seed)

    def call() -> float:
        return 1.5e5 + (3e5 if rng.random() < 0.2 else 0.0) + rng.gauss(0, 5e3)

    made = []
    for _ in range(24):
        cost = sum(call() for _ in range(8)) / 8
        made.append(window_samples.Sample("fresh", 8, 7e4, 7e4 + cost, 0.0, False, alone=True))
        made.append(window_samples.Sample("chained", 1, 7e4, 7e4 + call(), 0.0, False, alone=True))
    return made


def test_windows_of_calls_one_by_one_cost_what_eagers_did() -> None:
    """And not what single calls usually cost, of which the quick ones count."""
    more = []
    for seed in range(40):
        overhead = window_samples.Overhead(turns=True)
        overhead.add(one_by_one(seed))
        overhead.end_session()
        own = one_by_one(1000 + seed)
        assert not clocks.assess_clocks(window_samples.Visits([own]), overhead).marked
        more.append(stats.median([overhead.wall(s) - s.event for s in own if s.kind == "fresh"]))
    assert abs(stats.median(more)) < 1e4
    # Where eager's took turns, it costs what single calls usually do, at the least.
    del overhead.walls["alone"], overhead.least["alone"]
    quick = window_samples.typical("chained", overhead.walls["chained"])
    assert overhead.wall(one_by_one(1)[0]) == pytest.approx(one_by_one(1)[0].outer - quick)


def test_what_a_window_costs_is_not_taken_for_more_cores() -> None:
    def used(cpu: float, outer: float, threads: int = 1) -> float:
        return measurement.cores(
            window_samples.Sample("fresh", 8, 2e5, outer, cpu, False), 2.2e5, threads
        )

    # Faults of pages and messages are the window's: what is busy with them is one thread.
    assert used(5.1e5, 5.2e5) == 1.0
    assert used(2.0e5, 9.0e5) == 1.0
    assert used(2 * 2.2e5 + 3e5, 2.2e5 + 3e5) == pytest.approx(2.0)
    assert used(4 * 2.2e5 + 3e5, 2.2e5 + 3e5, threads=2) == pytest.approx(2 + 1.4 / 2.2, rel=0.1)


def test_what_windows_cost_at_the_same_time_is_taken_off() -> None:
    pairs = []
    for k in range(6):  # a machine on which windows cost more and more
        cost = 50_000.0 + 30_000.0 * k
        base = [window_samples.Sample("fresh", 8, 1e5, 1e5 + cost, 0.0, False) for _ in range(4)]
        own = [window_samples.Sample("fresh", 8, 5e4, 5e4 + cost, 0.0, False) for _ in range(4)]
        pairs.append(window_samples.Pair({"eager": base}, own, {"eager": base}))
        pairs[-1].pay()
    overhead = calibrated().paired(pairs)
    wall = stats.paired_speedup(measurement.rounds_of(pairs, "eager", "wall", overhead))
    assert wall.value == pytest.approx(2.0) and wall.low > 1.9
    assert overhead.noise("fresh") < 0.1 * 125_000.0
    visits = window_samples.Visits([r.candidate for r in pairs])
    assert not clocks.assess_clocks(visits, overhead).marked
    # A clock that shows a half of what passed changes nothing about the wall.
    for r in pairs:
        for s in r.candidate:
            s.event /= 2
    assert clocks.assess_clocks(visits, overhead).clock == "wall"


def test_calls_that_come_alone_on_a_gpu_show_the_hosts_work() -> None:
    visits = window_samples.Visits([[*samples("fresh", 12, 1e6), *samples("chained", 4, 3e6)]])
    on_a_gpu = dataclasses.replace(calibrated(), turns=True)
    found = measurement.measurement(visits, on_a_gpu)
    assert found.latency_ms == pytest.approx(3 * found.median_ms, rel=0.1)
    assert measurement.measurement(visits, calibrated()).latency_ms is None


def test_a_clock_that_shows_less_than_half_hides() -> None:
    assert "hidden" in judged(samples("fresh", 12, 1e6, outer=3e6, cpu=3e6)).hides
    assert not judged(samples("fresh", 12, 1e6, outer=1.5e6, cpu=1.5e6)).hides
    loud = samples("fresh", 12, 1e6, outer=3e6, cpu=3e6, disturbed=True)
    assert not judged(loud).hides


def test_who_waits_for_a_core_hides_no_work() -> None:
    """On a busy machine each window of a short call may end late."""
    waits = samples("fresh", 12, 1e5, outer=3e6, cpu=1.5e5)
    found = judged(waits)
    assert (found.clock, found.hides) == ("wall", "")
    on_a_gpu = dataclasses.replace(calibrated(), turns=True)
    assert "hidden" in clocks.assess_clocks(window_samples.Visits([waits]), on_a_gpu).hides


def test_results_that_are_remembered() -> None:
    assert judged(samples("fresh", 12, 1e6), samples("repeat", 3, 1e5)).doubtful
    assert not judged(samples("fresh", 12, 1e6), samples("repeat", 3, 9e5)).marked


def test_a_short_call_needs_repeated_certification() -> None:
    found = judged(samples("fresh", 12, 5e3))
    assert not found.marked and any("repeated certification" in n for n in found.notes)


def test_disturbed_windows_are_left_out_unless_there_are_many() -> None:
    quiet, loud = samples("fresh", 8, 1e6), samples("fresh", 4, 5e6, disturbed=True)
    few = window_samples.Visits([quiet + loud]).times("event", calibrated())
    assert max(few[0]) < 1.1
    many = window_samples.Visits([loud + quiet[:3]]).times("event", calibrated())
    assert len(many[0]) == 7


@pytest.mark.parametrize(
    ("quiet", "loud", "busy"),
    [
        (0, 2, True),  # identical code got 0.003x [0.0017, 0.0045] from two such
        (1, 1, True),
        (3, 1, True),  # too few that nobody disturbed
        (4, 5, True),
        (5, 4, False),
        (2, 0, False),
        (12, 0, False),
    ],
)
def test_a_disturbed_measurement_excludes_nothing(quiet: int, loud: int, busy: bool) -> None:
    """Neither that the candidate is slower nor that it is faster; an undisturbed one does."""
    for factor in (300.0, 1 / 300.0):
        windows = samples("fresh", quiet, factor * 1e6) + samples(
            "fresh", loud, factor * 1e6, disturbed=True
        )
        found = judged(windows)
        assert (found.busy, found.disturbed) == (busy, busy)
        times = window_samples.Visits([windows]).times("event", calibrated())
        speedup = baselines.against("eager", record(1.0), times, 1.0)
        bounded = measurement.bounded(speedup, found)
        assert bounded.value == pytest.approx(1 / factor, rel=0.1)
        assert (bounded.low <= 1 <= bounded.high) == busy
        assert bounded.low <= bounded.value <= bounded.high


def test_baselines_that_were_disturbed_exclude_nothing() -> None:
    windows = samples("fresh", 12, 300e6)
    found = clocks.assess_clocks(
        window_samples.Visits([windows]),
        dataclasses.replace(calibrated(), quiet=False),
        window_samples.Alone(),
    )
    assert found.busy and not found.disturbed
    times = window_samples.Visits([windows]).times("event", calibrated())
    bounded = measurement.bounded(baselines.against("eager", record(1.0), times, 1.0), found)
    assert bounded.low < 0.01 and bounded.high == 1.0


def test_work_shared_between_calls_wins_nothing_and_loses_all_the_same() -> None:
    """What is doubtful of a quiet machine is the candidate's own doing."""
    found = clocks.Assessed("event", doubtful=True)
    slow = Speedup(0.5, 0.4, 0.6, "eager")
    fast = Speedup(2.0, 1.8, 2.2, "eager")
    assert measurement.bounded(slow, found) == slow
    assert measurement.bounded(fast, found) == dataclasses.replace(fast, low=1.0)


def test_windows_fit_time_and_memory() -> None:
    budget = device_timing.BUDGETS["quick"]

    def slots(size: int) -> window_base.Slots:
        meta = [torch.empty(size, dtype=torch.uint8, device="meta")]
        return window_base.Slots.of(meta, meta)

    assert budgets.plan(1e6, slots(64), budget).fresh == 20
    assert budgets.plan(1e3, slots(64), budget).fresh == budgets.MAX_CALLS
    assert budgets.plan(1e3, slots(4 << 20), budget).fresh == 4
    assert budgets.plan(1e8, slots(1 << 30), budget).fresh == 1


def record(ms: float) -> baselines.Record:
    blocks = [[ms * f for f in (0.99, 1.0, 1.01, 1.0, 0.995, 1.005)]] * 3
    return baselines.record(Measurement(median_ms=ms, clock="event"), blocks, 2, 2e6 * ms)


def test_the_sentinel() -> None:
    cached = record(1.0)
    now = record(1.0).blocks[:1]

    def drift(by: float) -> baselines.Drift:
        return baselines.drift([[t * by for t in now[0]]], cached)

    assert drift(1.015).ratio == 1.0 and not drift(1.015).again
    assert drift(1.1).ratio == pytest.approx(1.1) and not drift(1.1).again
    assert drift(1.5).again and drift(0.7).again


def test_drift_widens_the_interval_both_ways() -> None:
    cached, candidate = record(1.0), record(0.5).blocks[:1]
    still = baselines.against("eager", cached, candidate, 1.0)
    slower = baselines.against("eager", cached, candidate, 1.1)
    assert slower.value == pytest.approx(1.1 * still.value)
    assert slower.low == still.low and slower.high > 1.09 * still.high


def test_records_of_another_protocol_or_thread_count_are_not_used() -> None:
    good = record(1.0)
    assert baselines.comparable(good, 2)
    wrong: list[dict[str, Any]] = [{"protocol": 0}, {"threads": 7}, {"blocks": []}]
    for changed in (*wrong, {"blocks": [[0.0]]}):
        assert not baselines.comparable(dataclasses.replace(good, **changed), 2)


def test_contenders_are_the_fastest_and_those_near_it() -> None:
    assert baselines.contenders({"a": record(2), "b": record(1), "c": record(1.05)}) == ["b", "c"]
    assert baselines.contenders({"a": record(2), "b": record(1)}) == ["b"]


def test_speedup_against_itself_is_one() -> None:
    blocks = record(1.0).blocks
    found = baselines.against("eager", record(1.0), blocks, 1.0)
    assert found.value == pytest.approx(1.0)
    assert not found.low > 1.0
    assert isinstance(stats.speedup(blocks, blocks), stats.Interval)
