"""What inputs promise: which structures are found, and that families keep them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kwharness.numerics import families, input_structure
from kwharness.numerics.families import Traits
from kwharness.numerics.input_structure import Structure

Make = Callable[[], torch.Tensor]


def found(make: Make, count: int = 8) -> Structure:
    return input_structure.of([[make()] for _ in range(count)])[0]


def banded(n: int = 32) -> torch.Tensor:
    return torch.randn(n, n).tril(2).triu(-1)


def symmetric(n: int = 24) -> torch.Tensor:
    x = torch.randn(n, n)
    return x + x.T


CAUSAL = torch.full((16, 16), -torch.inf).triu(1)

FOUND: dict[str, tuple[Make, list[str]]] = {
    "lower": (lambda: torch.randn(16, 16).tril(), ["is lower triangular"]),
    "upper_of_a_batch": (lambda: torch.randn(3, 16, 16).triu(), ["is upper triangular"]),
    "diagonal": (lambda: torch.diag(torch.randn(32)), ["is diagonal"]),
    "band": (banded, ["has a band of 4 diagonals"]),
    "blocks": (
        lambda: torch.block_diag(*[torch.randn(8, 8) for _ in range(4)]),
        ["has blocks of 8 on its diagonal"],
    ),
    "unit_triangle": (
        lambda: torch.randn(16, 16).tril(-1) + torch.eye(16),
        ["is lower triangular"],
    ),
    "padding": (
        lambda: torch.nn.functional.pad(torch.randn(8, 30), (0, 2)),
        ["has elements that are the same in every draw"],
    ),
    "symmetric": (symmetric, ["is symmetric"]),
    "symmetric_in_short_numbers": (lambda: symmetric().bfloat16(), ["is symmetric"]),
    "grouped_heads": (
        lambda: torch.randn(2, 8, 4).repeat_interleave(2, 1),
        ["has neighbours that are equal along dimension 1"],
    ),
    "expanded": (
        lambda: torch.randn(16).expand(8, 16).clone(),
        ["repeats itself along dimension 0"],
    ),
    "circulant": (
        lambda: (lambda r: torch.stack([r.roll(i) for i in range(12)]))(torch.randn(12)),
        ["has elements that are equal in every draw"],
    ),
    "sorted": (lambda: torch.randn(32).sort().values, ["is sorted along dimension 0"]),
    "falling": (
        lambda: -torch.rand(8, 32).cumsum(1),
        ["is sorted along dimension 1, falling"],
    ),
    "one_hot": (
        lambda: torch.nn.functional.one_hot(torch.randint(0, 10, (64,)), 10).float(),
        ["has rows of which one element is not zero"],
    ),
    "permutation": (lambda: torch.eye(16)[torch.randperm(16)], ["is a permutation matrix"]),
    "labels": (lambda: torch.randint(0, 5, (64,)).float(), ["holds only 5 values"]),
    "causal_mask": (lambda: CAUSAL.clone(), ["is the same in every draw"]),
    "mask_of_ones": (lambda: torch.ones(16, 16).tril(), ["is the same in every draw"]),
}

NOT_FOUND: dict[str, Make] = {
    "noise": lambda: torch.randn(32, 32),
    "ones": lambda: torch.ones(64),
    "constants": lambda: torch.tensor([0.485, 0.456, 0.406]),
    "rectified": lambda: torch.relu(torch.randn(64, 64)),
    "dropped_out": lambda: torch.randn(64, 64) * (torch.rand(64, 64) < 0.1),
    "pairs": lambda: torch.randn(2, 2),
    "axis_of_two": lambda: torch.randn(2),
    "uniform": lambda: torch.rand(64),
    "one": lambda: torch.randn(1),
    "short_numbers": lambda: torch.rand(64, 64).bfloat16(),
    "whole_numbers": lambda: torch.randint(0, 1000, (4096,)).float(),
    "indices": lambda: torch.arange(16),
    "none": lambda: torch.empty(0, 4),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_structure_is_found_and_families_keep_it(name: str) -> None:
    make, says = FOUND[name]
    s = found(make)
    assert s.says == says
    traits = Traits(structures=[s])
    t = make()
    for family in families.FAMILIES:
        if family is families.PERMUTED:  # it leaves such inputs out
            continue
        drawn = [families.apply(family, [make()], seed, traits)[0] for seed in range(8)]
        if family.name in ("zeros", "all_equal", "repeated", "zero_one"):
            continue  # these have more in common
        kept = input_structure.of([[x.nan_to_num(7.0, 8.0, 9.0)] for x in drawn])[0]
        if kept.few and not s.few:  # short numbers around 1e-40 are few
            continue
        told = says if not family.planted or s.fixed is None else kept.says
        for phrase in told:
            assert phrase in kept.says or "same in every draw" in phrase, (family.name, kept.says)
    g = torch.Generator().manual_seed(1)
    broken = s.broken(t, g)
    assert broken.shape == t.shape and broken.dtype == t.dtype and not torch.equal(broken, t)
    assert found(lambda: s.broken(make(), g)).says != says


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_chance_brings_is_no_structure(name: str) -> None:
    for _ in range(20):
        assert not found(NOT_FOUND[name]).says


def test_fixed_places_stay_and_others_are_mapped() -> None:
    s = found(lambda: torch.randn(16, 16).tril())
    x = torch.randn(16, 16).tril()
    for family in families.FAMILIES:
        y = families.apply(family, [x], 3, Traits(structures=[s]))[0]
        assert torch.equal(y.triu(1), torch.zeros(16, 16)), family.name
    planted = families.apply(families.BY_NAME["planted"], [x], 3, Traits(structures=[s]))[0]
    assert not torch.isfinite(planted).all()
    shifted = families.apply(families.BY_NAME["shifted"], [x], 3, Traits(structures=[s]))[0]
    assert bool((shifted.tril() != 0).sum() == 16 * 17 / 2)


def test_partners_are_changed_alike() -> None:
    s = found(symmetric)
    x = symmetric()
    for name in ("spikes", "planted"):
        y = families.apply(families.BY_NAME[name], [x], 5, Traits(structures=[s]))[0]
        assert torch.equal(y.nan_to_num(7.0), y.T.nan_to_num(7.0)) and not torch.equal(x, y)
    at = s.picked(x, 5)
    assert at is not None and at.tolist() == [5, 5 * 24]
    assert found(lambda: torch.randn(9).sort().values).picked(x, 5) is None
    lower = found(lambda: torch.randn(16, 16).tril())
    for number in range(300):
        at = lower.picked(torch.empty(16, 16), number)
        assert at is not None and int(at) // 16 >= int(at) % 16


@pytest.mark.parametrize("name", [*FOUND, *NOT_FOUND])
def test_large_inputs_are_looked_at_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = FOUND[name][0] if name in FOUND else NOT_FOUND[name]
    torch.manual_seed(5)
    draws = [[make()] for _ in range(8)]
    (whole,) = input_structure.of(draws)
    monkeypatch.setattr(input_structure, "WHOLE", 0)
    (parts,) = input_structure.of(draws)
    assert parts.says == whole.says and (parts.same is None) == (whole.same is None)
    if parts.same is not None and whole.same is not None:
        assert torch.equal(parts.same, whole.same)


def test_the_first_of_equal_words_is_found_wherever_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(3)
    words = torch.randint(0, 300, (2000,)) * 0x9E3779B1
    firsts = [int((words == w).nonzero()[0]) for w in words]
    for whole in (1 << 20, 0):
        monkeypatch.setattr(input_structure, "WHOLE", whole)
        found = input_structure._firsts(words)
        assert found is not None and found.tolist() == firsts
        assert input_structure._firsts(torch.arange(1000)) is None
        assert input_structure._firsts(words[:0]) is None
