"""Draws in order, and draws in which few terms carry the output."""

from __future__ import annotations

import pytest
import torch

from kwharness.base.calibration import Line
from kwharness.numerics import families, few_terms, orders
from kwharness.numerics.families import Traits
from kwharness.task import operator_counts


def lengths(f: object, *args: torch.Tensor) -> set[int]:
    with operator_counts.Counter() as c:
        f(*args)  # type: ignore[operator]
    return c.lengths - {0}


X = torch.randn(4, 6, 10)


@pytest.mark.parametrize(
    ("f", "found"),
    [
        (lambda x: x.sum(-1), {10}),
        (lambda x: x.sum(), {240}),
        (lambda x: x.mean((1, 2)), {60}),
        (lambda x: x.amax(1), {6}),
        (lambda x: x.max(0), {4}),
        (lambda x: torch.topk(x, 2), {10}),
        (lambda x: torch.topk(x, 2, 1), {6}),
        (lambda x: x.sort(dim=1), {6}),
        (lambda x: torch.argsort(x, dim=1, stable=True), {6}),
        (lambda x: x.kthvalue(2), {10}),
        (lambda x: x.cumsum(1), {6}),
        (lambda x: torch.softmax(x, 0), {4}),
        (lambda x: torch.logsumexp(x, (0, 2)), {40}),
        (lambda x: torch.nn.functional.layer_norm(x, (6, 10)), {60}),
        (lambda x: torch.linalg.vector_norm(x, dim=-1), {10}),
        (lambda x: x.flatten(1).argmax(-1), {60}),
        (lambda x: x * 2 + 1, set()),
        (lambda x: x.long().sum(-1), set()),
    ],
)
def test_what_is_reduced_sorted_or_scanned_is_found(f: object, found: set[int]) -> None:
    assert found <= lengths(f, X) and (found or not lengths(f, X))


def test_lines_are_the_dimensions_that_are_as_long() -> None:
    tensors = [torch.randn(16, 4, 8), torch.randn(8), torch.arange(32)]
    assert orders.lines_of(tensors, {32}) == [Line(0, 1, 3)]
    assert orders.lines_of(tensors, {8}) == [Line(0, 2, 3), Line(1, 0, 1)]
    assert orders.lines_of(tensors, {512}) == [Line(0, 0, 3)]
    assert orders.lines_of(tensors, {4, 7}) == []


@pytest.mark.parametrize("line", [Line(0, 2, 3), Line(0, 1, 2), Line(0, 0, 1), Line(0, 1, 3)])
def test_each_line_has_an_order_of_its_own(line: Line) -> None:
    x = torch.randn(24, 20, 32)
    y = families.apply(families.ORDERED, [x], 6, Traits(lines=[line]))[0]
    assert y.shape == x.shape and not torch.equal(x, y)

    def rows(t: torch.Tensor) -> torch.Tensor:
        t = t.flatten(line.start, line.stop - 1).movedim(line.start, -1)
        return t.reshape(-1, t.shape[-1])

    before, after = rows(x), rows(y)
    runs = (before.sort(-1).values != after.sort(-1).values).any(-1)
    assert 0 < int(runs.sum()) < len(runs), "the others hold what they held"
    rising = (after.diff(dim=-1) >= 0).all(-1)
    falling = (after.diff(dim=-1) <= 0).all(-1)
    together = (after.roll(-1, -1).diff(dim=-1) < 0).sum(-1) <= 2
    assert bool(rising.any()) and bool(falling.any()) and bool((together & ~rising).any())
    n = before.shape[1]
    best = after.topk(n // 8, -1).indices % 2
    assert bool(((best == best[:, :1]).all(-1) & ~rising & ~falling & ~together).any())
    equal = after[runs]
    assert bool((equal[:, 0] == equal[:, 1]).all())


@pytest.mark.parametrize("n", [64, 100])
def test_the_largest_are_at_one_residue_of_every_power_of_two(n: int) -> None:
    """Whoever keeps too few of each residue, modulo whichever power, is wrong on one such row."""
    x = torch.randn(orders.KINDS, n)
    y = families.apply(families.ORDERED, [x], 6, Traits(lines=[Line(0, 1, 2)]))[0]
    at = y.topk(4, -1).indices
    step = 1 << (n // 4).bit_length() - 1
    apart = (at - at[:, :1]) % n
    assert bool(((apart % step == 0) | ((n - apart) % step == 0)).all(-1).any())


def test_of_a_large_input_some_lines_are_put_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(orders.ARRANGED, "cpu", 640)
    assert orders.ALWAYS == 12
    x = torch.randn(100, 64)
    y = families.apply(families.ORDERED, [x], 6, Traits(lines=[Line(0, 1, 2)]))[0]
    assert 8 <= int((x != y).any(-1).sum()) <= 12


def test_few_terms_are_left_at_the_same_places() -> None:
    a, b, c = torch.randn(64, 64), torch.randn(64, 64), torch.randn(64)
    x, y, z = families.apply(families.FEW_TERMS, [a, b, c], 9)
    left = x.abs() > 1e-3
    assert 1 <= int(left.sum()) <= few_terms.KEPT and torch.equal(x[left], a[left])
    assert torch.equal(y[left], b[left]) and torch.equal(z, c)
    index = torch.arange(64)
    x, i, z = families.apply(families.REPEATED, [a, index, torch.ones(5)], 9)
    row = int(i[0])
    assert torch.equal(x, a[row].expand(64, 64)) and i.tolist() == [row] * 64
    assert z.tolist() == [1.0] * 5
    assert few_terms.many([torch.empty(1 << 14)], 1) and not few_terms.many(
        [torch.empty(1 << 14)], 2
    )


def test_few_terms_of_a_product_are_left_and_its_sums_stay_as_large() -> None:
    a, b = torch.randn(64, 1024), torch.randn(1024, 48)
    traits = Traits(factors=[Line(0, 1, 2), Line(1, 0, 1)])
    for seed, left in enumerate((a, b)):
        x, y = families.apply(families.FEW_FACTORS, [a, b], seed, traits)
        changed, dim = ((x, 0), (y, 1))[seed]
        places = (changed != 0).all(dim)
        assert int(places.sum()) == few_terms.KEPT == int((changed != 0).any(dim).sum())
        assert torch.equal((y, x)[seed], (b, a)[seed])
        larger = (changed / left).abs().amax()
        assert float(larger) == pytest.approx((1024 / few_terms.KEPT) ** 0.5, rel=1e-6)
        assert 0.3 < float((x @ y).std() / (a @ b).std()) < 3
    x, y = families.apply(families.FEW_FACTORS, [a, b], 3, Traits())
    assert torch.equal(x, a) and torch.equal(y, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_are_sorted_as_pytorch_sorts_them(dtype: torch.dtype) -> None:
    rows = torch.randn(7, 33).to(dtype)
    rows[0, :3], rows[1] = torch.tensor([torch.nan, torch.inf, -torch.inf]).to(dtype), 2.0
    for given in (rows, rows.T, rows[:, ::2], rows[:0]):
        before = given.clone()
        assert torch.equal(orders._sorted(given).nan_to_num(), given.sort(-1).values.nan_to_num())
        assert torch.equal(given.nan_to_num(), before.nan_to_num())
