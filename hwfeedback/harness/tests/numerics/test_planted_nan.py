"""NaN and infinity that are planted count where the output depends on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from kwharness.base.calibration import Scale
from kwharness.numerics import planted_nan
from kwharness.numerics.correctness import Expected, Noise, Outcome, compare, complete

F = Callable[..., torch.Tensor]
NAN, INF = math.nan, math.inf


def judged(reference: F, candidate: F, base: Sequence[torch.Tensor], *where: tuple) -> Outcome:
    """Judges a candidate where values are planted: (input, index, value) each."""
    given = [t.clone() for t in base]
    for i, at, value in where:
        given[i][at] = value

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        out = reference(*[t.double() if t.is_floating_point() else t for t in inputs])
        return [out.double() if out.is_floating_point() else out]

    wide = run(given)
    e = complete(Expected(wide, [reference(*given)], [None]))
    e.effects = planted_nan.look(run, given, base)
    noise = Noise(error=Scale(1e-6, 1e-6), scale=Scale(1.0, 1.0))
    return compare(candidate(*given), e, 0, noise, 1e-6, mask=True)


def diagonal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.diag(a) @ b


def scaled_rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a[:, None] * b


A, B, X = torch.rand(8) + 1, torch.randn(8, 8), torch.randn(16, 8)


def test_where_nothing_depends_a_number_will_do() -> None:
    o = judged(diagonal, scaled_rows, [A, B], (1, (2, 3), NAN), (0, 5, INF), (1, (1, 1), -INF))
    assert o.passed and not o.dropped, o.reason

    def off(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = scaled_rows(a, b)
        y[7, 3] += 1e-3
        return y

    o = judged(diagonal, off, [A, B], (1, (2, 3), NAN))
    assert not o.passed and "[7, 3]" in o.reason

    def lost(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = scaled_rows(a, b)
        y[2, 3] = 0
        return y

    assert not judged(diagonal, lost, [A, B], (1, (2, 3), NAN)).passed
    assert not judged(scaled_rows, diagonal, [A, B], (1, (2, 3), NAN)).passed, "nobody asked for it"


def masked(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    s = (q @ k.T).masked_fill(torch.ones(16, 16).triu(1) > 0, -INF)
    return torch.softmax(s, -1) @ k


def causal(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    rows = [torch.softmax(q[i] @ k[: i + 1].T, -1) @ k[: i + 1] for i in range(16)]
    return torch.stack(rows)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_key_that_is_masked_is_never_read(value: float) -> None:
    o = judged(masked, causal, [X, X.flip(0)], (1, (9, 4), value))
    assert o.passed and not o.dropped, o.reason

    def late(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        y = causal(q, k)
        y[9:] = causal(q.nan_to_num(0, 0, 0), k.nan_to_num(0, 0, 0))[9:]
        return y

    assert not judged(masked, late, [X, X.flip(0)], (1, (9, 4), NAN)).passed


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s = (q @ k.T).masked_fill(torch.ones(16, 16).triu(1) > 0, -INF)
    return torch.softmax(s, -1) @ v


def forgetful(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.softmax(q[i] @ k[: i + 1].T, -1) @ v[: i + 1] for i in range(16)])


@pytest.mark.parametrize("also", [[], [(2, (10, 3), INF)], [(2, (10, 3), -INF)]])
def test_a_masked_value_beside_an_infinite_key_is_never_read(also: list[tuple]) -> None:
    """The key changes the rows whose masked value is NaN, and so their NaN seems to depend on what
    was planted; more so where another masked value of the column is infinite.
    """
    draw = [X.clone(), X.flip(0), X.roll(3, 0)]
    draw[0][12, 4] = -1.0  # a row that the infinite key leaves as it is
    where = [(1, (2, 4), INF), (2, (9, 3), NAN), *also]
    o = judged(attention, forgetful, draw, *where)
    assert o.passed and not o.dropped, o.reason

    def without(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = forgetful(q, k, v)
        y[9:] = forgetful(q, k, v.nan_to_num(0, 0, 0))[9:]
        return y

    assert not judged(attention, without, draw, *where).passed


def nan_as(value: float) -> F:
    return lambda x: torch.relu(torch.where(torch.isnan(x), value, x))


@pytest.mark.parametrize(
    ("value", "passes"), [(-INF, True), (0.0, True), (-3.0, True), (1.0, False), (1e4, False)]
)
def test_nan_is_dropped_as_a_far_number_would_be(value: float, passes: bool) -> None:
    o = judged(torch.relu, nan_as(value), [X], (0, (1, 1), NAN), (0, (2, 2), INF))
    assert o.passed == passes and o.dropped == passes


def test_a_maximum_that_drops_nan_is_told_of_and_a_sum_is_wrong() -> None:
    def largest(x: torch.Tensor) -> torch.Tensor:
        return x.amax(-1)

    drops = lambda x: torch.where(torch.isnan(x), -INF, x).amax(-1)  # noqa: E731
    o = judged(largest, drops, [X], (0, (1, 1), NAN), (0, (1, 2), INF), (0, (3, 3), NAN))
    assert o.passed and o.dropped == 1, "where infinity is, too, a number tells nothing"
    finite = lambda x: drops(x).nan_to_num(0, 7, 7)  # noqa: E731
    assert not judged(largest, finite, [X], (0, (1, 1), NAN), (0, (1, 2), INF)).passed
    softmax = lambda x: torch.softmax(x, -1)  # noqa: E731
    beside = lambda x: torch.softmax(torch.where(torch.isnan(x), -INF, x), -1)  # noqa: E731
    o = judged(softmax, beside, [X], (0, (1, 1), NAN))
    assert o.passed and o.dropped == 8
    total = lambda x: x.sum(-1)  # noqa: E731
    assert not judged(total, lambda x: x.nansum(-1), [X], (0, (1, 1), NAN)).passed


def test_infinity_that_is_lost_is_told_of_and_a_number_in_its_place_is_wrong() -> None:
    """As of codes with a zero point, whose sums are taken apart."""
    codes = torch.tensor([[9.0, 3.0, 8.0, 1.0, 7.0, 2.0, 9.0, 5.0]]).expand(6, 8)

    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ (codes - 4).T.to(x.dtype)

    def apart(x: torch.Tensor) -> torch.Tensor:
        return x @ codes.T.to(x.dtype) - 4 * x.sum(-1, keepdim=True)

    o = judged(product, apart, [X], (0, (1, 1), INF))
    assert o.passed and o.lost == 6
    assert not judged(product, lambda x: apart(x).nan_to_num(), [X], (0, (1, 1), INF)).passed
    spread = lambda x: product(x) + 0 * x.sum()  # noqa: E731
    assert not judged(product, spread, [X], (0, (1, 1), INF)).passed, "other rows are finite"


def test_what_cannot_hold_nan_is_free_where_it_depends_on_it() -> None:
    def which(x: torch.Tensor) -> torch.Tensor:
        return x.argmax(-1)

    def other(x: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.isnan(x), -INF, x).argmax(-1)

    o = judged(which, other, [X], (0, (1, int(X[1].argmin())), NAN))
    assert o.passed and o.dropped == 1

    def wrong(x: torch.Tensor) -> torch.Tensor:
        y = other(x)
        y[5] = (y[5] + 1) % 8
        return y

    assert not judged(which, wrong, [X], (0, (1, int(X[1].argmin())), NAN)).passed


def test_a_fourier_transform_spreads_nothing_by_rounding() -> None:
    kernel = torch.tensor([0.5, 0.25])

    def by_fourier(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[-1] + 1
        spectrum = torch.fft.rfft(x, n=n) * torch.fft.rfft(kernel.to(x.dtype), n=n)
        return torch.fft.irfft(spectrum, n=n)

    def direct(x: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(x, (1, 1))
        return padded[..., 1:] * 0.5 + padded[..., :-1] * 0.25

    o = judged(by_fourier, direct, [torch.randn(4, 32)], (0, (1, 7), NAN))
    assert o.passed, o.reason


def test_where_the_reference_raises_all_is_asked_for() -> None:
    wide = torch.tensor([1.0, NAN, INF], dtype=torch.float64)
    e = complete(Expected([wide], [wide.float()], [None]))
    e.effects = planted_nan.unknown([wide])
    noise = Noise(scale=Scale(1.0, 1.0))
    assert compare(wide.float(), e, 0, noise, 1e-6, mask=True).passed
    assert not compare(torch.tensor([1.0, 2.0, INF]), e, 0, noise, 1e-6, mask=True).passed
