"""Seeds that get_inputs() sets by itself lead elsewhere where we say so, and nowhere else."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kwharness.model import input_seeds


def by_generator() -> Any:
    return torch.randn(4, generator=torch.Generator().manual_seed(42)).tolist()


def by_the_global_seed() -> Any:
    torch.manual_seed(42)
    return torch.randn(4).tolist()


def by_another_name() -> Any:
    torch.random.manual_seed(42)
    return torch.randn(4).tolist()


def by_python() -> Any:
    random.seed("x")
    return random.random()


def by_numpy() -> Any:
    numpy = pytest.importorskip("numpy")
    numpy.random.seed(42)
    made = [numpy.random.rand(), numpy.random.default_rng(7).random()]
    return [*map(float, made), float(numpy.random.RandomState(7).rand())]


@pytest.mark.parametrize(
    "draw", [by_generator, by_the_global_seed, by_another_name, by_python, by_numpy]
)
def test_a_seed_that_is_asked_for_is_mixed_with_ours(draw: Callable[[], Any]) -> None:
    plain = draw()
    with input_seeds.ours(1):
        one, again = draw(), draw()
    with input_seeds.ours(2):
        other = draw()
    assert one == again, "the same two seeds give the same"
    assert one != plain and one != other
    assert draw() == plain, "nothing of it stays"


def test_seeds_of_one_file_stay_apart() -> None:
    with input_seeds.ours(1):
        torch.manual_seed(1)
        a = torch.rand(())
        torch.manual_seed(2)
        b = torch.rand(())
    assert float(a) != float(b)
