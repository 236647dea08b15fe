"""Parts of verification by themselves, with a real reference."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from evaluating import Evaluator, processes_of
from test_referee import AFFINE_INIT, HEAD, SCALED, eager, model_new

from kwharness.base import for_candidate
from kwharness.base.calibration import Calibration, FamilyCalibration, Scale
from kwharness.base.protocol import Closed
from kwharness.base.verdicts import CorrectnessReport
from kwharness.clients.candidate_client import CandidateClient
from kwharness.clients.errors import WorkerGone
from kwharness.machine import device
from kwharness.numerics import families
from kwharness.numerics.correctness import Outcome
from kwharness.process.fork_client import Exit
from kwharness.referee import timed_calls, trial
from kwharness.referee.faults import Fault, faults
from kwharness.referee.program import Program
from kwharness.referee.timed_calls import TimedCalls
from kwharness.referee.trial import Trial
from kwharness.verify import calibrate, check_output, findings, secret_draws, verification
from kwharness.verify import timed_calls as checks
from kwharness.verify.oracle import Oracle
from kwharness.verify.verification import Verification


def task_of(forward: str, inputs: str, init: str = "", arguments: str = "x") -> str:
    return HEAD + (
        f"class Model(nn.Module):\n{init}    def forward(self, {arguments}):\n"
        f"        {forward}\n\n"
        f"def get_inputs():\n    return {inputs}\n\ndef get_init_inputs():\n    return []\n"
    )


def test_weights_are_moved_but_for_what_is_no_weight() -> None:
    weight, signs, mask = torch.eye(8), torch.linspace(-1, 1, 8), torch.ones(8)
    state, moved = [weight, signs, mask, weight], [True, True, False, True]
    out = secret_draws.perturbed(state, moved, [0, 1, 2, 0], 5)
    for before, after in zip(state[:2], out[:2], strict=True):
        assert bool((before != after).all())
    assert bool((out[0] >= 0).all()) and bool((out[1] < 0).any())
    assert out[2] is mask and out[3] is out[0]


@contextmanager
def prepared(evaluator: Evaluator, source: str, level: str = "quick") -> Iterator[Trial]:
    """A trial whose reference has drawn and computed, and no candidate yet."""
    known = {"known": evaluator.calibration(source)}
    processes = processes_of(evaluator.server, evaluator.request(source, "", level, known))
    reference = processes.reference(compiles=False)
    try:
        assert processes.calibration is not None
        yield Trial(processes, Program("", ""), reference, processes.calibration).draw()
    finally:
        reference.kill()


TIES = task_of(
    "return torch.argmax(x, -1), x.sum(-1), x.sum(-1) > 0",
    "[torch.randint(0, 3, (512, 40)).float()]",
)


def calls_with_ties() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    x = torch.randint(0, 3, (3, 512, 40)).float()
    return [x], [x.argmax(-1), x.sum(-1), x.sum(-1) > 0]


def test_timed_calls_are_judged_by_float64_where_they_differ_from_eager(
    evaluator: Evaluator,
) -> None:
    with prepared(evaluator, TIES) as e:
        inputs, right = calls_with_ties()
        last = [39 - inputs[0].flip(-1).argmax(-1), *right[1:]]
        assert bool((last[0] != right[0]).any())
        assert TimedCalls(e).check(inputs, last, right) is None

        # One of 512, in one call: less than any share that could be let pass.
        one_off = [right[0].clone(), *right[1:]]
        row = inputs[0][1, 7]
        one_off[0][1, 7] = int(row.argmin())
        assert "1 of 512 indices are wrong" in str(TimedCalls(e).check(inputs, one_off, right))
        flipped = [*right[:2], right[2].clone()]
        flipped[2][2, 5] ^= True
        assert "1 of 512 elements differ" in str(TimedCalls(e).check(inputs, flipped, right))
        beside = [right[0], right[1].clone(), right[2]]
        beside[1][0, 3] += 1
        assert "output 1 of a timed call: 1 of 512" in str(
            TimedCalls(e).check(inputs, beside, right)
        )

        # Where eager itself is off, float64 says that the candidate is right.
        assert TimedCalls(e).check(inputs, right, [right[0], right[1] + 1, right[2]]) is None


def test_what_is_expected_of_a_timed_call_outlives_a_closer_look(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, met = Oracle.look_closer, []

    def looked(self: Oracle, *given: Any) -> None:
        before = given[2].wide[0].clone()
        look(self, *given)
        met.append(torch.equal(before, given[2].wide[0]))

    monkeypatch.setattr(Oracle, "look_closer", looked)
    source = task_of("return torch.softmax(x, -1)", "[torch.randn(64, 256)]")
    with prepared(evaluator, source) as e:
        tree, inputs = e.verification.draws[0].get()
        for _ in range(2):  # the reference's blocks are large enough
            e.verification.oracle.expect(tree, inputs)
        assert checks.check_call(e.verification, inputs, [torch.zeros(64, 256)])
    assert met == [True, True]


DECIDES = task_of("return (x > x.mean()).float(), x * 2", "[torch.randn(64, 128)]")


def test_what_is_expected_outlives_all_closer_looks(evaluator: Evaluator) -> None:
    """Of a task that decides the reference is asked twice for each: lanes, then what moves."""
    with prepared(evaluator, DECIDES) as e:
        v = e.verification
        assert v.calibration.decides
        tree, inputs = v.draws[1].get()
        for patterns in (1, 1, 8, 8):  # blocks are as large as what was answered before
            expected = v.oracle.expect(tree, inputs)
            assert expected.eager is not None
            before = [t.clone() for t in (*expected.wide, *expected.eager)]
            v.oracle.look_closer(tree, inputs, expected, patterns)
            assert all(map(torch.equal, before, (*expected.wide, *expected.eager)))
            moved = expected.moved
            assert moved is not None and 1e-9 < moved[1].max < 1e-5


def test_a_draw_of_its_own_condition_is_judged_by_it(evaluator: Evaluator) -> None:
    """Rounding within the reference, large on this draw alone, moves the result by what no error of
    an input does; eager has none of it by luck.
    """
    source = task_of(
        "t = x[:, 1] * 3\n        return (x[:, 0] + t) - t", "[torch.randn(64, 256, 2)[:, 0]]"
    )
    with prepared(evaluator, source) as e:
        _, (x,) = e.verification.draws[0].get()
        x = torch.stack([(x[:, 0] * 4).round() / 4, x[:, 1] + 1e6], 1)
        honest = ((x[:, 0] + x[:, 1]) + x[:, 1] * 2) - x[:, 1] * 3
        assert torch.equal((x[:, 0] + x[:, 1] * 3) - x[:, 1] * 3, x[:, 0])
        assert not torch.allclose(honest, x[:, 0], atol=1e-2)
        assert checks.check_call(e.verification, [x], [honest]) is None
        assert checks.check_call(e.verification, [x], [x[:, 0] + 20])


@pytest.mark.parametrize(
    "sparing, off, tells, status",
    [
        (False, 4e-6, True, "correct"),
        (False, 4e-6, False, "wrong"),
        (False, 4e-5, True, "wrong"),
        (True, 4e-6, True, "correct"),
        (True, 4e-6, False, "wrong"),
    ],
)
def test_who_fails_by_little_is_looked_at_in_more_patterns(
    evaluator: Evaluator,
    monkeypatch: pytest.MonkeyPatch,
    sparing: bool,
    off: float,
    tells: bool,
    status: str,
) -> None:
    """One may not show how far a draw moves: who is right by eight is right, and counted once."""
    look, patterns = Oracle.look_closer, []

    def looked(self: Oracle, *given: Any, **more: Any) -> None:
        look(self, *given, **more)
        patterns.append(given[3] if len(given) > 3 else 1)
        if patterns[-1] == calibrate.PATTERNS and tells:
            for scale in given[2].moved:
                scale.max, scale.rms = 8 * scale.max, 8 * scale.rms

    monkeypatch.setattr(Oracle, "look_closer", looked)
    if sparing:
        monkeypatch.setattr(device, "PEAK", 1 << 60)
    source = task_of("return x * 3 + x.abs()", "[torch.randn(64, 256)]")
    v = evaluator.verdict(source, model_new(f"return (x * 3 + x.abs()) * (1 + {off})"))
    assert v["status"] == status, v["reason"]
    near = off < 1e-5
    assert (calibrate.PATTERNS in patterns) == near, patterns
    if status == "correct":
        base, *others = v["correctness"]["families"]
        assert base["passed"] and base["seeds"] == v["correctness"]["seeds"]
        assert all(f["passed"] or not f["gates"] for f in others)


@pytest.mark.parametrize("sparing", [False, True])
@pytest.mark.parametrize(
    "when, instead, status",
    [
        ("self.met == 1", "math.inf", "correct"),
        ("self.met < 3", "math.inf", "wrong"),
        ("self.met == 1", "0.0", "wrong"),
        ("self.met == 1", "torch.where(nth == 1, 0.0, math.inf)", "wrong"),
    ],
)
def test_infinity_for_nan_is_wrong_on_more_draws_than_one(
    evaluator: Evaluator,
    monkeypatch: pytest.MonkeyPatch,
    sparing: bool,
    when: str,
    instead: str,
    status: str,
) -> None:
    """On one an elimination comes to either."""
    if sparing:
        monkeypatch.setattr(device, "PEAK", 1 << 60)
    init = "    def __init__(self):\n        super().__init__()\n        self.met = 0\n\n"
    mixes = (
        "import math\nnan = torch.isnan(x)\nself.met += int(nan.any())\n"
        "nth = nan.view(-1).cumsum(0).view(x.shape)\n"
        f"if nan.any() and {when}:\n    return torch.where(nan, {instead}, x * 3)\nreturn x * 3"
    )
    v = evaluator.verdict(task_of("return x * 3", "[torch.randn(64, 256)]"), model_new(mixes, init))
    assert v["status"] == status, v["reason"]
    (planted,) = [f for f in v["correctness"]["families"] if f["name"] == "planted"]
    assert planted["passed"] == (status == "correct")
    assert planted["seeds"] == (check_output.ELSEWHERE if status == "correct" else 1), planted


def test_timed_calls_that_agree_with_eager_cost_no_forward(
    evaluator: Evaluator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def judged(self: Verification, inputs: object, outputs: object) -> None:
        asked.append(1)

    monkeypatch.setattr(checks, "check_call", judged)
    with prepared(evaluator, TIES) as e:
        inputs, right = calls_with_ties()
        assert TimedCalls(e).check(inputs, [t.clone() for t in right], right) is None
        assert not asked
        monkeypatch.setattr(timed_calls, "SUSPECTS_S", 0.0)
        assert TimedCalls(e).check(inputs, [(right[0] + 1) % 40, *right[1:]], right) is None
        assert len(asked) == 1  # one at least, however late it is


def test_zeros_and_ones_with_other_weights_are_asked_at_quick(evaluator: Evaluator) -> None:
    source = task_of(
        "return self.linear(x)",
        "[torch.randn(8, 64)]",
        "    def __init__(self):\n        super().__init__()\n"
        "        self.linear = nn.Linear(64, 16)\n\n",
    )
    v = evaluator.verdict(source, eager(source))
    assert v["status"] == "correct", v["reason"]
    exact = [f for f in v["correctness"]["families"] if f["name"] == "zero_one"]
    assert len(exact) == 1 and exact[0]["gates"] and exact[0]["seeds"] == 1
    assert exact[0]["max_error"] == 0 and exact[0]["max_bound"] == 0
    # Right but for an error of 1e-6 of a weight, which no sum of zeros and ones has.
    off = eager(source).replace(
        "class ModelNew(Model):\n    pass",
        "class ModelNew(Model):\n    def forward(self, x):\n"
        "        return self.linear(x) * (1 + 2.0**-22)",
    )
    v = evaluator.verdict(source, off)
    assert v["status"] == "wrong" and "zero_one" in v["reason"], v["reason"]


def test_packed_weights_meet_zeros_and_ones_in_a_process_of_their_own(evaluator: Evaluator) -> None:
    init = (
        "    def __init__(self):\n        super().__init__()\n"
        "        self.linear = nn.Linear(64, 16)\n        self.packed = None\n\n"
    )
    source = task_of("return self.linear(x)", "[torch.randn(8, 64)]", init)
    packs = (
        "w, b = self.linear.weight, self.linear.bias\n"
        "if self.packed is None:\n    {}\n    self.packed = w.t().clone(), b.clone()\n"
        "return (x @ self.packed[0] + self.packed[1]){}"
    )
    v = evaluator.verdict(source, model_new(packs.format("pass", ""), init))
    assert v["status"] == "correct", v["reason"]
    exact = [f for f in v["correctness"]["families"] if f["name"] == "zero_one"]
    assert len(exact) == 1 and exact[0]["passed"] and exact[0]["seeds"] == 1
    v = evaluator.verdict(source, model_new(packs.format("pass", " * (1 + 2.0**-22)"), init))
    assert v["status"] == "wrong" and "zero_one" in v["reason"], v["reason"]
    # What its second process does is as much its own.
    dies = "if torch.equal(w, w.round()):\n        import os; os._exit(3)"
    v = evaluator.verdict(source, model_new(packs.format(dies, ""), init))
    assert v["status"] == "crashed" and "exit code 3" in v["reason"], v["reason"]


# The order along a reduced axis.


def test_axes_that_are_reduced_are_found(evaluator: Evaluator) -> None:
    def axes(source: str) -> set[families.Axis]:
        kept = json.loads(json.dumps(evaluator.calibration(source)["calibration"]))
        found = Calibration.from_json(kept)
        assert (found.family("permuted") is not None) == bool(found.axes)
        return set(found.axes)

    assert axes(task_of("return x.sum(-1)", "[torch.randn(16, 40)]")) == {((0, 1),)}
    assert axes(task_of("return torch.softmax(x, -1)", "[torch.randn(16, 40)]")) == set()
    two = "[torch.randn(6, 24), torch.randn(24, 5)]"
    assert axes(task_of("return x @ y", two, arguments="x, y")) == {((0, 1), (1, 0))}
    square = "[torch.randn(8, 8), torch.randn(8, 8)]"
    assert axes(task_of("return x @ y", square, arguments="x, y")) == {((0, 1), (1, 0))}
    loss = "[torch.randn(6, 24), torch.randn(6, 24)]"
    assert axes(task_of("return ((x - y) ** 2).mean()", loss, arguments="x, y")) == {
        ((0, 0), (1, 0)),
        ((0, 1), (1, 1)),
    }


def test_inputs_with_an_order_are_not_permuted() -> None:
    def axes(make: Callable[[], torch.Tensor]) -> list[families.Axis]:
        return families.axes_of([[make()], [make()]])

    assert axes(lambda: torch.randn(8, 9)) == [((0, 0),), ((0, 1),)]
    assert axes(lambda: torch.randn(8, 8).tril()) == []
    assert axes(lambda: (lambda x: x + x.T)(torch.randn(8, 8))) == []
    assert axes(lambda: torch.rand(8, 9).cumsum(1)) == [((0, 0),)]
    assert axes(lambda: torch.ones(8, 9)) == []
    assert axes(lambda: torch.randint(0, 9, (8, 9))) == []
    a, b = torch.randn(400, 500), torch.randn(400, 500)
    a[0, 0] = b[0, 0]
    assert families.axes_of([[a], [b]])  # one of 200 000 may be the same by chance
    a[:, 0] = b[:, 0]
    assert not families.axes_of([[a], [b]])


def test_permuted_axes_are_permuted_alike() -> None:
    x, y = torch.randn(6, 24), torch.randn(24, 5)
    a, b = families.apply(families.PERMUTED, [x, y], 3, families.Traits([((0, 1), (1, 0))]))
    assert not torch.equal(a, x) and torch.equal(a.sort(1).values, x.sort(1).values)
    torch.testing.assert_close(a @ b, x @ y)
    two = torch.tensor([1.0, 2.0])
    for seed in range(8):
        other = families.apply(families.PERMUTED, [two], seed, families.Traits([((0, 0),)]))
        assert other[0].tolist() == [2, 1]


def test_a_candidate_that_relies_on_the_order_is_wrong(evaluator: Evaluator) -> None:
    source = task_of(
        "return x.amax(-1)", "[torch.rand(16, 40) + 5.0 * (torch.arange(40) % 8 == 7)]"
    )
    known = dict(evaluator.calibration(source)["calibration"])
    # On base draws it is right; of the families only the order tells.
    known["families"] = [f for f in known["families"] if f["name"] in ("base", "permuted")]
    v = evaluator.verdict(
        source, model_new("return x[:, 7::8].amax(-1)"), known={"calibration": known}
    )
    assert v["status"] == "wrong" and "family permuted" in v["reason"], v["reason"]
    v = evaluator.verdict(source, eager(source))
    rows = [f for f in v["correctness"]["families"] if f["name"] == "permuted"]
    assert v["status"] == "correct" and rows[0]["gates"] and rows[0]["passed"]


# Other shapes.

ROW_SUM = task_of("return x.sum(-1)", "[torch.randn(16, 40)]")


@pytest.mark.parametrize(
    ("source", "body", "general", "said"),
    [
        (ROW_SUM, "return x.sum(-1)", True, "right on [8, 40]; [32, 40]; [17, 40]; [16, 41]"),
        (
            ROW_SUM,
            "assert x.shape[0] % 8 == 0\nreturn x.sum(-1)",
            False,
            "right on [8, 40]; [32, 40]; [16, 41], fails on [17, 40] (it raises AssertionError)",
        ),
        (ROW_SUM, "return x[:, :40].sum(-1)", False, "[16, 41] (16 of 16 elements are off"),
        (
            ROW_SUM,
            "import os\nif x.shape[0] != 16: os._exit(0)\nreturn x.sum(-1)",
            False,
            "fails on [8, 40] (its process ended itself with exit code 0)",
        ),
        (
            ROW_SUM,
            "while x.shape[0] != 16: pass\nreturn x.sum(-1)",
            False,
            "fails on [8, 40] (a forward took over 2",
        ),
    ],
    ids=["any", "raises", "wrong", "exits", "hangs"],
)
def test_other_shapes_are_recorded_and_gate_nothing(
    evaluator: Evaluator,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    body: str,
    general: bool,
    said: str,
) -> None:
    monkeypatch.setattr(trial, "FORWARD_S", 2.0)
    monkeypatch.setattr(trial, "FORWARD_EAGERS", 1.0)
    v = evaluator.verdict(source, model_new(body), "certify")
    assert v["status"] == "certified", v["reason"]
    assert v["correctness"]["general"] is general
    line = [e for e in v["evidence"] if e.startswith("inputs of other shapes")]
    assert len(line) == 1 and said in line[0], v["evidence"]


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        ("return x.sum(-1)", 4),
        ("assert x.shape[1] == 40\nreturn x.sum(-1)", 4),
        ("assert x.shape[0] > 4\nreturn x.sum(-1)", None),
        ("return x.sum(-1) if x.shape[0] > 4 else x.sum(-1) + 1", None),
    ],
    ids=["any", "one_length", "raises", "wrong"],
)
@pytest.mark.parametrize("sparing", [False, True])
def test_a_small_batch_for_what_is_slow(
    evaluator: Evaluator,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    rows: int | None,
    sparing: bool,
) -> None:
    monkeypatch.setattr(families, "SMALL_BYTES", 512)
    if sparing:
        monkeypatch.setattr(device, "PEAK", 1 << 60)
    seen: list[Verification] = []
    general = Verification.general

    def noted(self: Verification, *given: Any) -> None:
        general(self, *given)
        seen.append(self)

    monkeypatch.setattr(Verification, "general", noted)
    v = evaluator.verdict(ROW_SUM, model_new(body), "certify", cold=False)
    assert v["status"] == "certified", v["reason"]
    found = seen[0].small
    assert (found[1][0].shape[0] if found else None) == rows


def test_shapes_that_the_reference_cannot_take_are_not_asked(evaluator: Evaluator) -> None:
    v = evaluator.verdict(SCALED, eager(SCALED), "certify")
    assert v["correctness"]["general"] is True
    assert "inputs of other shapes: right on [8, 64]; [32, 64]; [17, 64]" in v["evidence"]
    assert "general" not in evaluator.verdict(SCALED, eager(SCALED))["correctness"]


def test_a_dead_reference_leaves_the_verdict(evaluator: Evaluator) -> None:
    source = task_of(
        "__import__('os')._exit(1) if x.shape[0] != 16 else None; return x.sum(-1)",
        "[torch.randn(16, 40)]",
    )
    v = evaluator.verdict(source, eager(ROW_SUM), "certify")
    assert v["status"] == "certified", v["reason"]
    assert "general" not in v["correctness"]
    assert any("not tried to the end" in e for e in v["evidence"])


def test_shapes_are_cut_out_of_whole_draws() -> None:
    def shapes(*makes: Callable[[], torch.Tensor]) -> list[list[list[int]]]:
        draws = [[m() for m in makes] for _ in range(2)]
        return [
            [list(t.shape) for t in families.reshaped(draws, ways[0])]
            for ways in families.shapes_of(draws)
        ]

    # What shares the batch changes with it.
    assert shapes(lambda: torch.randn(6, 10), lambda: torch.randn(6), lambda: torch.randn(10)) == [
        [[3, 10], [3], [10]],
        [[12, 10], [12], [10]],
        [[7, 10], [7], [10]],
        [[6, 11], [6], [11]],
    ]
    assert shapes(lambda: torch.randn(1, 2, 3)) == [[[2, 2, 3]], [[1, 2, 5]]]
    # A mask has a structure, and so has what is sorted: no other shape is made of them.
    assert shapes(lambda: torch.randn(8, 8).tril()) == []
    assert shapes(lambda: torch.arange(9)) == []
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    square = families.reshaped([[a], [b]], families.Shape(((0, 0), (0, 1)), 5))[0]
    assert square.shape == (5, 5) and torch.equal(square[:4, :4], a)


# Tasks as large as memory.


@pytest.mark.parametrize("level", ["quick", "certify"])
def test_draws_are_made_anew_where_they_are_too_large_to_keep(
    evaluator: Evaluator,
    monkeypatch: pytest.MonkeyPatch,
    level: str,
) -> None:
    monkeypatch.setattr(secret_draws, "KEPT_BYTES", 4 * 16 * 64 * 4)
    with prepared(evaluator, SCALED, level) as e:
        first, second, *_ = e.verification.draws
        assert first.kept and not second.kept
        assert torch.equal(second.tensors[0], second.tensors[0])
        assert not torch.equal(first.tensors[0], second.tensors[0])
    v = evaluator.verdict(SCALED, eager(SCALED), level)
    assert v["status"] == ("certified" if level == "certify" else "correct"), v["reason"]
    base = v["correctness"]["families"][0]
    assert base["seeds"] == verification.BASE_SEEDS[level]
    v = evaluator.verdict(SCALED, model_new("return torch.relu(x)", AFFINE_INIT), level)
    assert v["status"] == "wrong"
    monkeypatch.setattr(secret_draws, "KEPT_BYTES", 0)
    client = e.processes.reference(compiles=False)
    try:
        again = calibrate.calibrate(client, want_compile=False)
        assert {f.name for f in again.families} >= {"base", "heavy_tails", "planted"}
    finally:
        client.kill()


@pytest.mark.parametrize("product, summed", [("x @ w", [0, 1, 2]), ("x.t() @ w", [0, 0, 1])])
def test_sums_of_a_square_product_are_known_from_its_rows(
    evaluator: Evaluator, product: str, summed: list[int]
) -> None:
    source = f"""import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, w):
        return {product}


def get_inputs():
    return [torch.randn(256, 256), torch.randn(256, 192)]


def get_init_inputs():
    return []
"""
    assert evaluator.calibration(source)["calibration"]["factors"] == [summed, [1, 0, 1]]


class Vanished:
    """A worker whose fork server is gone, and its own channel."""

    pid = 0

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.channel = self

    def send(self, *_: object, **__: object) -> None:
        raise Closed("the peer has closed")

    def wait(self, timeout: float | None = None) -> Exit:
        ends = {"lost": (None, None), "foreign": (None, 9), "exited": (3, None)}
        return Exit(*ends[self.reason], self.reason)

    def log(self) -> str:
        return ""


@pytest.mark.parametrize("reason", ["lost", "foreign", "exited"])
def test_a_lost_worker_is_no_fault_of_the_candidate(reason: str) -> None:
    client = CandidateClient(Vanished(reason), 1.0)  # type: ignore[arg-type]
    with (
        pytest.raises(Fault if reason == "exited" else WorkerGone),
        faults("verifying it", client),
    ):
        client.tell(for_candidate.Settle())


def test_a_family_on_which_outputs_have_another_shape_is_left_out(evaluator: Evaluator) -> None:
    """As where a reference returns as many rows as it finds: on its own draws always the same."""
    task = task_of("return x[: 2 + int((x != 0).any())] * 2", "[torch.randn(8, 64)]")
    notes = evaluator.calibration(task)["calibration"]["notes"]
    said = "output 0 has [3, 64], then [2, 64]"
    assert [n.partition(":")[0] for n in notes if said in n] == ["zeros"]
    v = evaluator.verdict(task, model_new("return x[: 2 + int((x != 0).any())] + x[: 3]"))
    assert v["status"] == "correct", v["reason"]


def test_a_row_of_a_report_is_put_back() -> None:
    report = findings.Report("float32")
    known = FamilyCalibration("base", True, "", False, [])
    right = Outcome(True, Scale(1.0, 0.5), Scale(2.0, 2.0))
    assert report.row("base") is None
    report.add(known, "base", [right])
    report.add(replace(known, note="few"), "other", [right])
    before = report.row("base")
    report.add(known, "base", [Outcome(False, Scale(math.inf, 0.0), Scale(2.0, 2.0))])
    row = report.family("base")
    assert row is not None and (row.seeds, row.passed, row.max_error) == (2, False, 1e300)
    assert (row.rms_error, row.rms_bound) == (0.5, 2.0), "that which came closest"
    report.put("base", before)
    assert [(f.name, f.seeds, f.passed) for f in report.families] == [
        ("base", 1, True),
        ("other", 1, True),
    ]
    report.put("base", None)
    assert report.family("base") is None and report.families[0].note == "few"
    report.drops_nan = True
    assert CorrectnessReport.from_json(report.to_json()).families == report.families
    assert set(report.to_json()) == {"precision", "seeds", "families"}
