"""How far float32 may take what is decided on: by the size of a value, and by what moves it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from test_decisions import lanes_of

from kwharness.numerics import decision_margins
from kwharness.numerics.decision_margins import Margins
from kwharness.numerics.rounding import ULP

SEEDS = 8
LOG2_E = 1.44269504


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moved(values: torch.Tensor, off: torch.Tensor) -> Margins:
    found = Margins()
    found.add(decision_margins.size(values), off, off != 0)
    return found


def by_rounding(values: torch.Tensor) -> torch.Tensor:
    return ULP * values * draw(1, *values.shape).sign()


def test_the_margin_follows_the_size() -> None:
    values = torch.exp(8 * draw(0, 65536))
    found = moved(values, by_rounding(values))
    share = found.of(decision_margins.size(values), 0.0) / (ULP * values)
    common = (values > 1e-6) & (values < 1e6)
    assert not found.few() and float(share.min()) >= 0.5
    assert float(share[common].max()) <= 32.0


def test_one_that_was_hardly_moved_has_the_margin_of_others() -> None:
    values = torch.cat([draw(0, 4096), torch.tensor([1e-4, 1e6], dtype=torch.float64)])
    off = by_rounding(values)
    off[-2:] = 1e-30
    found = moved(values, off).of(decision_margins.size(values), 0.0)
    assert bool((found[-2:] >= 0.25 * ULP * values[-2:]).all())
    assert float(found[-2]) < 1e-1 * float(found[:-2].max())


def test_what_one_mean_moves_has_the_margin_of_larger_values() -> None:
    """By chance that mean's roundings may have cancelled."""
    values = draw(0, 65536)
    off = 1e-9 + by_rounding(values)
    found = moved(values, off)
    assert found.few()
    small = values.abs() < 1e-3
    assert float(found.of(decision_margins.size(values), 0.0)[small].min()) > 5e-9
    off = 1e-9 * draw(2, 64, 1).sign().expand(64, 1024).reshape(-1) + by_rounding(values)
    assert not moved(values, off).few()  # the means of 64 rows
    assert not Margins().few()


def test_of_few_values_all_have_the_largest() -> None:
    values = torch.tensor([1e-6, 1.0, 1e3], dtype=torch.float64)
    assert (
        moved(values, ULP * values).of(decision_margins.size(values), 0.0).tolist()
        == [1e3 * ULP] * 3
    )


@pytest.mark.parametrize("scale", [1e-250, 1e250])
def test_squares_that_float64_does_not_hold_do_no_harm(scale: float) -> None:
    values = scale * draw(0, 4096)
    found = moved(values, by_rounding(values)).of(decision_margins.size(values), 0.0)
    assert bool((found > 0).all()) and float(found.max()) <= float((ULP * values).abs().max())


def test_no_margin_is_less_than_the_least_but_where_all_are() -> None:
    values = torch.exp(8 * draw(0, 4096))
    found = moved(values, by_rounding(values))
    assert float(found.of(decision_margins.size(values), 1e-4).min()) == 1e-4
    exact = moved(values, torch.zeros_like(values))
    assert float(exact.of(decision_margins.size(values), 1e-4).max()) == 0.0


def test_zero_and_what_float32_does_not_hold_have_a_size() -> None:
    given = [0.0, 1e-300, 1.0, -1.0, math.inf, math.nan]
    sizes = decision_margins.size(torch.tensor(given, dtype=torch.float64)).tolist()
    one = 1 - decision_margins.LOWEST
    assert sizes == [0, 0, one, one, decision_margins.SIZES - 1, decision_margins.SIZES - 1]


def test_any_number_of_places_comes_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.exp(8 * draw(0, 1000))
    plain = moved(values, by_rounding(values)).of(decision_margins.size(values), 0.0)
    monkeypatch.setitem(decision_margins.LANES, "cpu", 1)
    assert torch.equal(
        moved(values, by_rounding(values)).of(decision_margins.size(values), 0.0), plain
    )


# Honest float32: what is decided on, in the reference and in other ways.
WAYS: dict[str, tuple[tuple[int, ...], list[Callable[[torch.Tensor], torch.Tensor]]]] = {
    "powers": (
        (64, 1024),
        [
            lambda x: torch.exp(3 * x),
            lambda x: torch.exp2(x * (3 * LOG2_E)),
            lambda x: 1 / torch.exp(-3 * x),
            lambda x: torch.exp(x) ** 3,
        ],
    ),
    "rows of many magnitudes": (
        (64, 1024),
        [
            lambda x: x[:, 1:] * torch.exp(8 * x[:, :1]),
            lambda x: x[:, 1:] / torch.exp(-8 * x[:, :1]),
            lambda x: (3 * x[:, 1:]) * (torch.exp(8 * x[:, :1]) / 3),
        ],
    ),
    "heavy tails": ((64, 1024), [lambda x: 0.3 * x**9, lambda x: x * x**8 / (1 / 0.3)]),
    "off their mean": (
        (64, 1024),
        [
            lambda x: x - x.mean(),
            lambda x: x - x.mean(0).mean(),
            lambda x: x - x.t().reshape(-1).cumsum(0)[-1] / x.numel(),
        ],
    ),
    "off the means of rows": (
        (256, 256),
        [
            lambda x: x - x.mean(-1, keepdim=True),
            lambda x: x - x.cumsum(-1)[:, -1:] / 256,
            lambda x: x + (-x).mean(-1, keepdim=True),
        ],
    ),
    "off the means of two rows": (
        (2, 8192),
        [
            lambda x: x - x.mean(-1, keepdim=True),
            lambda x: x - x.view(2, 64, 128).sum(1).sum(-1, keepdim=True) / 8192,
        ],
    ),
    "differences of squares": (
        (64, 2048),
        [
            lambda x: x[:, :1024] * x[:, :1024] - x[:, 1024:] * x[:, 1024:],
            lambda x: (x[:, :1024] - x[:, 1024:]) * (x[:, :1024] + x[:, 1024:]),
            lambda x: torch.addcmul(-x[:, 1024:].square(), x[:, :1024], x[:, :1024]),
        ],
    ),
    "differences of sums of squares": (
        (4096, 64),
        [
            lambda x: x[:, :32].square().sum(-1) - x[:, 32:].square().sum(-1),
            lambda x: (x[:, :32].square() - x[:, 32:].square()).sum(-1),
            lambda x: x[:, :32].square().cumsum(-1)[:, -1] - x[:, 32:].square().cumsum(-1)[:, -1],
        ],
    ),
    "one column that cancels": (
        (512, 32),
        [
            lambda x: 3.3 * (1.1 * torch.cat([x[:, :31], 1e4 + x[:, 31:]], 1) - _last(x, 1.1e4)),
            lambda x: 3.63 * torch.cat([x[:, :31], 1e4 + x[:, 31:]], 1) - _last(x, 3.63e4),
        ],
    ),
    "a polynomial": (
        (256, 512),
        [
            lambda x: x**3 - 2 * x * x + x - 0.1,
            lambda x: ((x - 2) * x + 1) * x - 0.1,
            lambda x: x * (x - 1) ** 2 - 0.1,
        ],
    ),
    "logarithms": (
        (256, 512),
        [lambda x: 10 * torch.log(x.abs()), lambda x: torch.log2(x.abs()) * (10 / LOG2_E)],
    ),
}


def _last(x: torch.Tensor, value: float) -> torch.Tensor:
    return torch.cat([x.new_zeros(31), x.new_full((1,), value)])


@pytest.mark.parametrize("name", WAYS)
def test_the_honest_stay_within_the_bound(name: str) -> None:
    shape, (reference, *others) = WAYS[name]
    for seed in range(SEEDS):
        x = draw(seed, *shape).float()
        for decide in (torch.round, lambda v: v > 0):
            lanes = lanes_of(lambda x, decide=decide: decide(reference(x)), x)
            lanes.near()
            (d,) = lanes.made
            for way in (reference, *others):
                off = (way(x).double() - d.value).abs()
                assert bool((off <= d.bound()).all()), (seed, float((off / d.bound()).max()))
