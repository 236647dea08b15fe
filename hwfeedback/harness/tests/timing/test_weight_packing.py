"""What packing takes is the first call's time beside others'."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from kwharness.timing import weight_packing


def calls(times: Iterator[float]) -> Callable[[], float]:
    return lambda: next(times)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (4e-3, "packing its weights takes 2.99 ms, once after each change of them"),
        (1.2e-3, "packing its weights takes 190 us, once"),
        (1.03e-3, "packing its weights takes no longer than calls differ by"),
        (0.9e-3, "packing its weights takes no longer than calls differ by"),
    ],
)
def test_it_is_told_where_it_shows(first: float, said: str) -> None:
    # The very first call of a process is none of them.
    rounds = itertools.cycle([first, 1.0e-3, 1.01e-3, 1.05e-3])
    made: list[int] = []
    told = weight_packing.told(lambda: made.append(1), calls(itertools.chain([5.0], rounds)))
    assert told.startswith(said)
    assert len(made) == weight_packing.TIMES


@pytest.mark.parametrize(
    ("first", "usual", "said"),
    [
        (4e-3, [1.0e-3, 1.01e-3, 1.05e-3], "packing its weights takes 2.99 ms, once"),
        (1.09e-3, [1.0e-3, 1.01e-3, 1.02e-3], ""),  # a change may cost the caches
        (1.2e-3, [1.0e-3, 1.01e-3, 1.3e-3], ""),
        (0.9e-3, [1.0e-3, 1.01e-3, 1.02e-3], ""),
    ],
)
def test_of_who_may_not_pack_at_all_only_what_shows_is_told(
    first: float, usual: list[float], said: str
) -> None:
    rounds = itertools.cycle([first, *usual])
    told = weight_packing.told(lambda: None, calls(itertools.chain([5.0], rounds)), keeps=False)
    assert told.startswith(said) and bool(told) is bool(said)


def test_it_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_packing, "PACKING_S", 0.0)
    made: list[int] = []
    assert weight_packing.told(lambda: made.append(1), calls(itertools.repeat(1.0)))
    assert len(made) == 1
