"""What a forward decides: where another value within the bound gives another result."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from kwharness.attribution import trace
from kwharness.base.calibration import Noise
from kwharness.numerics import correctness, decision_sides, decisions, norms, rounding
from kwharness.numerics.correctness import Expected
from kwharness.task import operator_counts


def run_of(forward: Callable[..., Any]) -> Callable[..., tuple[Any, list[torch.Tensor]]]:
    """Returns how the reference worker runs a forward."""

    def run(inputs: Sequence[torch.Tensor], *modes: Any) -> tuple[Any, list[torch.Tensor]]:
        with contextlib.ExitStack() as stack, torch.no_grad():
            given = [t.double() if t.is_floating_point() else t.clone() for t in inputs]
            for m in modes:
                stack.enter_context(m)
            out = forward(*given)
        return None, list(out) if isinstance(out, tuple) else [out]

    return run


def lanes_of(forward: Callable[..., Any], *inputs: torch.Tensor) -> decisions.Lanes:
    run = run_of(forward)
    return decisions.Lanes(lambda *modes: run(inputs, *modes))


def sides_of(lanes: decisions.Lanes, i: int = 0) -> decision_sides.Sides | None:
    given = []
    for mode in decision_sides.LANES:
        _, sign, seed = mode.split(":")
        given.append(lanes.lane(int(sign), int(seed))[1][i])
    return decision_sides.of(lanes.plain[1][i], given)


def codes(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127.0
    return torch.round(x / scale).clamp(-128, 127).to(torch.int8)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def test_a_reciprocal_is_right_and_a_bias_is_not() -> None:
    x = draw(1024, 1024)
    lanes = lanes_of(codes, x)
    found, wide = sides_of(lanes), lanes.plain[1][0]
    assert found is not None and 0 < lanes.near() < 1e-3 * x.numel()
    scale = x.abs().amax(-1, keepdim=True) / 127.0
    reciprocal = torch.round(x * (1.0 / scale)).to(torch.int8)
    assert bool((reciprocal != wide).any()) and bool(found.allows(reciprocal).all())
    biased = torch.floor(x / scale + 0.502).clamp(-128, 127).to(torch.int8)
    assert int((~found.allows(biased)).sum()) > 100
    assert int((biased != wide).sum()) > 2 * int((found.open()).sum())


def test_small_values_are_right_beside_large_ones() -> None:
    x = draw(64, 4096)
    lanes = lanes_of(lambda x: torch.exp(3.0 * x).int(), x)
    found, wide = sides_of(lanes), lanes.plain[1][0]
    assert found is not None
    another = (1.0 / torch.exp(-3.0 * x)).int()
    assert bool((another != wide).any()) and bool(found.allows(another).all())
    powers = torch.exp(3.0 * x)
    nearest = torch.where(powers < 2e-6 * powers.max(), powers.round(), powers).int()
    wrong = nearest != wide
    assert int(wrong.sum()) > 100 and int((wrong & ~found.allows(nearest)).sum()) > 100


def test_rows_that_are_compared_have_bounds_of_their_own() -> None:
    x, y = draw(64, 1024), draw(64, 1025)[:, 1:]
    rows = torch.logspace(-3, 4, 64).unsqueeze(-1)
    lanes = lanes_of(lambda x, y: 3.3 * x > 3.3 * y, x * rows, y * rows)
    lanes.near()
    bound = lanes.made[0].bound()
    assert isinstance(bound, torch.Tensor)
    assert float(bound[0].max()) < 1e-7 and float(bound[-1].max()) > 1e-2


def test_a_count_has_the_bound_of_its_range() -> None:
    """Who counts by products comes near to each boundary by a unit of the largest one."""
    x = draw(64, 1024)
    lanes = lanes_of(lambda x: torch.histc(torch.tanh(x) ** 9, 64, -1.0, 1.0), x)
    lanes.near()
    bound = lanes.made[0].bound()
    assert isinstance(bound, torch.Tensor) and float(bound.min()) >= 8 * rounding.ULP


def test_one_value_beside_a_boundary_may_be_counted_on_both_sides() -> None:
    """Wherever it stands: patterns at random moved it one way alone in one of eight."""
    for at in range(64):
        x = torch.full((64,), 1.0)
        x[at] = 2.0 / 3.0  # 0.2 is the boundary
        lanes = lanes_of(lambda t: torch.histc(0.3 * t, 10, -1.0, 1.0), x)
        found = sides_of(lanes)
        assert found is not None and int(found.open().sum()) == 2


def test_what_is_rounded_may_be_shifted_before() -> None:
    x = draw(64, 4096)
    scale = x.abs().amax(-1, keepdim=True) / 127.0
    lanes = lanes_of(codes, x)
    found, value = sides_of(lanes), lanes.made[0].value
    shifted = x / scale + 128.5
    assert bool(((shifted.double() - 128.5 - value).abs() <= lanes.made[0].bound()).all())
    got = torch.floor(shifted).sub(128.0).to(torch.int8)
    assert found is not None and bool(found.allows(got).all())


def test_inputs_are_moved_by_the_bound_at_the_boundary() -> None:
    def above(x: torch.Tensor) -> torch.Tensor:
        return 3.3 * x > 1.0

    x = 100.0 * draw(64, 1024) ** 3
    aimed = decisions.aim(run_of(above), [x], [0], 3)
    assert aimed is not None
    lanes = lanes_of(above, aimed[0])
    lanes.near()
    far = (aimed[0] != x) & (x.abs() > 50.0)
    off = (lanes.made[0].value.abs() / lanes.made[0].bound())[far]
    assert len(off) > 1000 and int(((off > 1.0) & (off < 4.0)).sum()) > 0.9 * len(off)


def test_nothing_is_open_where_nothing_rounds() -> None:
    x = torch.arange(-400, 400).reshape(8, 100) / 16.0
    for forward in (torch.floor, lambda t: torch.round(4 * t), lambda t: t / 0.5 > 1.0):
        lanes = lanes_of(forward, x)
        assert lanes.made and lanes.near() == 0
    lanes = lanes_of(lambda t: torch.round(t * 0.3), x)
    assert lanes.near() > 0  # 0.3 is no power of two, and 5.0 * 0.3 lies on a half


def test_every_element_that_rounds_has_a_bound() -> None:
    """Two roundings of the same size would cancel in one of four."""
    for shape in ((64, 64), (256, 2048)):
        lanes = lanes_of(codes, draw(*shape))
        lanes.near()
        bound = lanes.made[0].bound()
        assert isinstance(bound, torch.Tensor) and bool((bound > 0).all())


def test_inputs_are_moved_to_both_sides_of_a_boundary() -> None:
    x = draw(64, 1024)
    aimed = decisions.aim(run_of(codes), [x], [0], 3)
    assert aimed is not None
    lanes = lanes_of(codes, aimed[0])
    lanes.near()
    value, bound = lanes.made[0].value, lanes.made[0].bound()
    off = (value - value.floor() - 0.5) / bound
    beside = (off.abs() > 1.5) & (off.abs() < 2.5)
    assert int(beside.sum()) > x.numel() / 10
    assert min(int((off[beside] > 0).sum()), int((off[beside] < 0).sum())) > x.numel() / 25
    assert decisions.aim(run_of(torch.exp), [x], [0], 3) is None
    assert decisions.aim(run_of(codes), [x], [], 3) is None


def test_inputs_are_moved_onto_a_boundary_that_nothing_rounds_before() -> None:
    x = draw(64, 128)
    edges = torch.tensor([-1.5, 0.1, 0.7])
    for forward, on in (
        (lambda t: torch.round(4 * t), lambda t: (4 * t) % 1 == 0.5),
        (lambda t: torch.bucketize(t, edges.double()), lambda t: torch.isin(t, edges)),
        (lambda t: t > 1.0, lambda t: t == 1.0),
    ):
        aimed = decisions.aim(run_of(forward), [x], [0], 5)
        assert aimed is not None and int(on(aimed[0]).sum()) > x.numel() / 50


def test_floats_behind_a_rounding_are_held_to_the_nearest() -> None:
    def steps(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 7.0
        return torch.round(x / scale) * scale

    x = decisions.aim(run_of(steps), [draw(64, 4096)], [0], 1)
    assert x is not None
    x = x[0]
    lanes = lanes_of(steps, x)
    wide = lanes.plain[1][0]
    e = Expected([wide], [steps(x)], [None], decides=True, sides=[sides_of(lanes)])
    correctness.complete(e)
    found = e.sides[0] if e.sides else None
    assert found is not None and e.own[0].max < 1e-5  # eager's error is no step
    got = wide.float()
    got.view(-1)[found.at] = (found.low + found.high - wide.view(-1)[found.at]).float()
    o = correctness.compare(got, e, 0, Noise(), 1e-6)
    assert o.passed and o.either == len(found.at) == int(found.open().sum()) > 0
    between = wide.float()
    between.view(-1)[found.at] = ((found.low + found.high) / 2).float()
    assert not correctness.compare(between, e, 0, Noise(), 1e-6).passed


def test_a_count_may_be_off_by_what_lies_near() -> None:
    x = draw(64, 512)
    lanes = lanes_of(lambda t: (t > t.mean(-1, keepdim=True)).sum(-1), x)
    found, wide = sides_of(lanes), lanes.plain[1][0]
    settled = torch.ones_like(wide, dtype=torch.bool) if found is None else ~found.open()
    assert int(settled.sum()) > 50
    e = Expected([wide], [wide], [None], decides=True, sides=[found])
    assert correctness.compare(wide, e, 0, Noise(), 0.0).passed
    assert not correctness.compare(wide - settled.long(), e, 0, Noise(), 0.0).passed


def test_ties_are_broken_at_random_unless_they_are_stable() -> None:
    x = torch.randint(0, 4, (16, 64), generator=torch.Generator().manual_seed(1)).float()

    def places(stable: bool) -> decisions.Lanes:
        return lanes_of(lambda t: torch.sort(t, dim=-1, stable=stable).indices // 1, x)

    loose, stable = sides_of(places(False)), sides_of(places(True))
    assert loose is not None and int(loose.open().sum()) > 100
    assert stable is None


def test_each_lane_orders_equal_values_in_its_own_way() -> None:
    """A cascade has as many right answers as there are orders."""
    x = torch.zeros(64)
    lanes = lanes_of(lambda t: torch.sort(t).indices // 1, x)
    orders = []
    for lane in decision_sides.LANES:
        sign, seed = lane.split(":")[1:]
        orders.append(tuple(lanes.lane(int(sign), int(seed))[1][0].tolist()))
    assert len(set(orders)) == len(decision_sides.LANES)
    halves = [sum(at < 32 for at in order[:32]) for order in orders]
    assert all(4 < n < 28 for n in halves), "shuffled, and not in two heaps that keep their order"
    assert all(sum(b > a for a, b in itertools.pairwise(order)) < 48 for order in orders)


def test_decisions_that_follow_each_other_are_forced() -> None:
    """Else one number on the other side of a half would be taken for an error of a step."""
    x = draw(64, 4096)
    run = run_of(lambda t: torch.round(t * 3.3) @ torch.ones(4096, 1, dtype=t.dtype))
    lanes = decisions.Lanes(lambda *modes: run([x], *modes))
    _, (forced,) = run([x], decisions.ExactNoise(1), lanes.forced())
    assert float((forced - lanes.plain[1][0]).abs().max()) < 0.1


def test_a_draw_is_unsettled_where_few_are_wrong() -> None:
    wide = torch.zeros(100, dtype=torch.int64)
    lane = wide.clone()
    lane[:5] = 1
    e = Expected([wide], [wide], [None], decides=True, sides=[decision_sides.of(wide, [lane])])
    few, many = wide.clone(), wide.clone()
    few[50:53], many[50:60] = 1, 1
    assert correctness.compare(few, e, 0, Noise(), 0.0).unsettled
    o = correctness.compare(many, e, 0, Noise(), 0.0)
    assert not o.passed and not o.unsettled
    got = wide.clone()
    got[:5] = torch.tensor([1, 0, 1, 0, 1])
    o = correctness.compare(got, e, 0, Noise(), 0.0)
    assert o.passed and o.either == 3
    got[0] = 2
    assert not correctness.compare(got, e, 0, Noise(), 0.0).passed


def test_only_what_a_decision_changes_is_let_pass() -> None:
    """Each value of a remainder is moved by the bound, and few jump; rows of a rounded product
    jump, and none to zero.
    """
    x = draw(64, 512)
    weight = draw(512, 8)

    def expected(forward: Callable[..., Any]) -> Expected:
        lanes = lanes_of(forward, x)
        wide = lanes.plain[1][0]
        e = Expected([wide], [wide.float()], [None], decides=True, sides=[sides_of(lanes)])
        return correctness.complete(e)

    def outcome(e: Expected, got: torch.Tensor) -> correctness.Outcome:
        noise = Noise(norms.Scale(3e-6, 3e-6), norms.Scale(), e.scales[0])
        return correctness.compare(got.float(), e, 0, noise, 1e-6)

    wrapped = expected(lambda x: torch.remainder(3.3 * x, 1.0))
    assert outcome(wrapped, wrapped.wide[0]).passed
    half = wrapped.wide[0].clone()
    half[:32] = 0.0
    o = outcome(wrapped, half)
    assert not o.passed and not o.unsettled and not o.slight

    product = expected(lambda x: torch.round(2000.3 * x) @ weight.to(x.dtype))
    few = product.wide[0].clone()
    found = product.sides[0] if product.sides else None
    assert found is not None and int(found.open().sum()) > 16
    few[0, :2] += 2 * float(found.span().max()) / 3
    assert outcome(product, few).slight
    few[0, :2] = float("nan")
    assert not outcome(product, few).slight
    zeros = product.wide[0].clone()
    zeros[0] = 0.0
    assert not outcome(product, zeros).slight


@pytest.mark.parametrize(
    "mode",
    [
        operator_counts.Counter,
        decisions.ExactNoise,
        decisions.Forced,
        decisions.Lane,
        decisions.Record,
        rounding.Float32Noise,
        rounding.Sources,
        trace._Operators,
    ],
)
def test_no_mode_imports_torch_compile(mode: type) -> None:
    """Its first operator would, half a second in each process."""
    assert not hasattr(mode.__torch_dispatch__, "__wrapped__")


def test_what_lanes_give_is_right_and_nothing_else() -> None:
    nan, inf = math.nan, math.inf
    wide = torch.tensor([[0.0, 1.0, nan, inf], [2.0, 3.0, -inf, 0.0]], dtype=torch.float64)
    up, down = wide.clone(), wide.clone()
    up[0, 1], down[0, 1], up[1, 1], down[1, 3] = 1.5, 0.5, 4.0, nan
    up[1, 0] = 2.0 * (1 + 1e-14)  # the same number, but for float64's own rounding
    found = decision_sides.of(wide, [up, down, wide.float()])
    assert found is not None and found.at.tolist() == [1, 5]
    assert found.open().tolist() == [[False, True, False, False], [False, True, False, False]]
    assert found.span().tolist() == [[0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
    got = torch.tensor([[7.0, 0.9, 7.0, 7.0], [7.0, 3.9, 7.0, nan]])
    right = found.nearest(got, wide)  # where some fall one way and some the other, all between
    assert right[1, 1] == 4.0 and abs(right[0, 1] - 0.9) < 1e-6
    right[0, 1] = 1.0
    assert right[1, 1] == 4.0 and torch.equal(right[0, :2], wide[0, :2])
    assert torch.equal(right[:, 2:].nan_to_num(5.0), wide[:, 2:].nan_to_num(5.0))
    for given in (wide, torch.tensor([1, 2, 3]), torch.tensor([True]), torch.empty(0, 3)):
        assert decision_sides.of(given, [given.clone(), given]) is None
    assert (
        decision_sides.of(wide, [wide[0]]) is None
        and decision_sides.of(up.cfloat(), [down.cfloat()]) is None
    )
    whole = torch.tensor([3, 4, 5, 6], dtype=torch.int8)
    found = decision_sides.of(
        whole, [whole + torch.tensor([0, 2, 0, 0]), whole - torch.tensor([0, 0, 1, 0])]
    )
    assert found is not None
    assert found.allows(torch.tensor([3, 5, 4, 7])).tolist() == [True, True, True, False]
    assert found.meets(torch.tensor([3, 5, 4, 7])).tolist() == [True, False, True, False]
    found = decision_sides.of(torch.tensor(True), [torch.tensor(False)])
    assert found is not None and bool(found.allows(torch.tensor(False)))
