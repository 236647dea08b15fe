"""Whose weights a candidate's own are: what is drawn at construction, and what takes what."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from kwharness.model import construction, weights
from kwharness.model.weights import BY_NAME, BY_SEED, BY_VALUE, Entry, Plan, Reference
from kwharness.verify import secret_draws


def constructed(make: type[nn.Module], seed: int = 0) -> tuple[nn.Module, list[Entry]]:
    with construction.under(seed) as drawn:
        model = make()
        drawn.finish(model)
    state = model.state_dict()
    return model, [Entry(n, t, drawn.of(t)) for n, t in state.items()]


def reference_of(make: type[nn.Module], seed: int = 0) -> Reference:
    model, entries = constructed(make, seed)
    parameters = {n for n, _ in model.named_parameters(remove_duplicate=False)}
    moved = [e.name in parameters or "running" in e.name for e in entries]
    at = [e.value.data_ptr() for e in entries]
    return Reference(entries, moved, [at.index(p) for p in at])


def planned(reference: type[nn.Module], candidate: type[nn.Module]) -> Plan:
    return weights.plan(reference_of(reference), constructed(candidate)[1])


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.LayerNorm(8)


# What is drawn.


def test_constants_are_drawn_and_nothing_else_is() -> None:
    torch.manual_seed(3)
    plain = Norm()
    model, entries = constructed(Norm, 3)
    assert torch.equal(plain.linear.weight, model.linear.weight)
    assert torch.equal(plain.linear.bias, model.linear.bias)
    drawn = [e.name for e in entries if e.constant is not None]
    assert drawn == [
        "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "last.weight",
        "last.bias",
    ]  # fmt: skip
    values = [e.value for e in entries if e.constant is not None]
    assert all(len(t.unique()) == 8 for t in values)
    assert len({tuple(t.tolist()) for t in values}) == 6, "each is another"
    assert all((e.value > 0).all() for e in entries if e.constant == 1)
    again = zip(entries, constructed(Norm, 3)[1], strict=True)
    assert all(torch.equal(a.value, b.value) for a, b in again)
    others = {e.name: e.value for e in constructed(Norm, 4)[1]}
    assert not torch.equal(others["norm.weight"], model.norm.weight)


def test_ways_to_fill() -> None:
    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.given = nn.Parameter(torch.full((5,), 0.5))
            self.data = nn.Parameter(torch.Tensor(5))
            self.data.data.fill_(2.0)
            self.initialised = nn.Parameter(torch.empty(5))
            nn.init.constant_(self.initialised, -3.0)
            self.never = nn.Parameter(torch.empty(5))
            self.twice = nn.Parameter(torch.ones(5))
            nn.init.ones_(self.twice)
            self.once = nn.Parameter(torch.ones(5))
            self.expanded = nn.Parameter(torch.ones(1).expand(5))
            self.register_buffer("mask", torch.zeros(5))
            self.register_buffer("scratch", torch.empty(5))

    _, entries = constructed(Filled)
    by = {e.name: e for e in entries}
    drawn = ("given", "data", "initialised", "never", "twice", "once")
    assert all(len(by[n].value.unique()) == 5 for n in drawn)
    assert [by[n].constant for n in drawn] == [0.5, 2.0, -3.0, 0.0, 1.0, 1.0]
    assert (by["initialised"].value < 0).all()
    assert not by["mask"].value.any() and not by["scratch"].value.any()
    # What is filled twice counts once.
    _, simple = constructed(type("Ones", (nn.Module,), {"__init__": _two_of_ones}))
    assert torch.equal(simple[0].value, by["twice"].value)
    assert torch.equal(simple[1].value, by["once"].value)


def _two_of_ones(self: nn.Module) -> None:
    nn.Module.__init__(self)
    self.a, self.b = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))


def test_nothing_stays_of_it() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    make, fill = nn.Parameter.__new__, torch.Tensor.fill_
    constructed(Norm)
    assert nn.Parameter.__new__ is make and torch.Tensor.fill_ is fill
    assert torch.are_deterministic_algorithms_enabled() is before
    assert torch.equal(nn.BatchNorm1d(3).weight, torch.ones(3))


def test_a_large_one_is_drawn_in_part() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3, 1 << 20))

    e = constructed(Large)[1][0]
    assert e.constant == 1 and not torch.equal(e.value[0], e.value[1])
    assert abs(float(e.value.std()) - construction.SPREAD) < 1e-3


# What takes what.


def test_the_same_names() -> None:
    p = planned(Norm, Norm)
    assert p.whole and p.mode == BY_NAME and not p.left and not p.told()


class Renamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        linear, self.n, last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.LayerNorm(8)
        self.columns = nn.Parameter(linear.weight.t().contiguous())
        self.row = nn.Parameter(linear.bias.reshape(1, 8))
        self.gain, self.shift = last.weight, last.bias


def test_other_names_are_told_by_their_values() -> None:
    p = planned(Norm, Renamed)
    assert p.mode == BY_VALUE and not p.whole and not p.left and not p.told()
    state = [e.value + 1 for e in reference_of(Norm).entries]
    names, given = p.given([], state)
    got = dict(zip(names, given, strict=True))
    assert torch.equal(got["columns"], state[0].t()) and torch.equal(got["row"][0], state[1])
    assert torch.equal(got["n.running_var"], state[5]) and torch.equal(got["shift"], state[8])


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = [nn.Linear(8, 8) for _ in range(3)]
        self.weight = nn.Parameter(torch.cat([p.weight for p in parts]))
        self.columns = nn.Parameter(torch.cat([p.weight for p in parts]).t().contiguous())
        self.bias = nn.Parameter(torch.cat([p.bias for p in parts]))


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))


def test_several_in_one() -> None:
    p = planned(Three, Joined)
    assert p.mode == BY_VALUE and not p.left
    state = [e.value * 2 for e in reference_of(Three).entries]
    given = dict(zip(*p.given([], state), strict=True))
    joined = torch.cat(state[::2])
    assert torch.equal(given["weight"], joined) and torch.equal(given["columns"], joined.t())
    assert torch.equal(given["bias"], torch.cat(state[1::2]))


class Square(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.linear.weight = nn.Parameter(self.linear.weight.detach().t().contiguous())


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)


def test_a_name_whose_value_agrees_only_transposed() -> None:
    p = planned(Linear, Square)
    assert p.mode == BY_VALUE and not p.whole
    state = [e.value for e in reference_of(Linear).entries]
    assert torch.equal(p.given([], state)[1][0], state[0].t())


class OfItsOwn(nn.Module):
    """Other values, under the reference's names."""

    def __init__(self) -> None:
        super().__init__()
        torch.randn(3)
        self.linear = nn.Linear(8, 8)


def test_names_are_enough() -> None:
    assert planned(Linear, OfItsOwn).whole


class Swapped(nn.Module):
    """Norms that are made in another order keep their names."""

    def __init__(self) -> None:
        super().__init__()
        self.b, self.a = nn.LayerNorm(8), nn.LayerNorm(8)


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(8), nn.LayerNorm(8)


def test_a_constant_goes_by_its_name() -> None:
    assert planned(Norms, Swapped).mode == BY_NAME


class Plain(nn.Module):
    """A norm's statistics as plain buffers, its weights in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))
        self.shift, self.gain = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.ones(8))


class Batch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)


def test_what_only_order_tells_apart_is_told() -> None:
    p = planned(Batch, Plain)
    assert p.mode == BY_VALUE and not p.left
    taken = {t.name: t.of for t in p.taken}
    assert taken == {"shift": (1,), "gain": (0,), "mean": (2,), "var": (3,)}
    assert len(p.told()) == 1 and "norm.running_mean and norm.running_var" in p.told()[0]


class Folded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.last = nn.LayerNorm(8)
        self.gain = nn.Parameter(norm.weight * torch.rsqrt(norm.running_var + norm.eps))
        self.scratch = nn.Parameter(torch.zeros(8))


def test_what_is_folded_is_judged_by_the_seed() -> None:
    p = planned(Norm, Folded)
    assert p.mode == BY_SEED and p.unknown == ["gain"]
    assert p.left == ["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"]
    moved = reference_of(Norm).moved
    assert p.may_move(moved) == [True, True, False, False, False, False, False, True, True]
    assert "norm.weight, norm.bias, norm.running_mean and norm.running_var" in p.evidence()[0]
    assert not p.told()


class InPlace(nn.Module):
    """A norm that is folded into what keeps its name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.last = nn.LayerNorm(8)
        with torch.no_grad():
            self.linear.weight *= norm.weight[:, None]


def test_what_is_folded_into_a_name_is_judged_by_the_seed() -> None:
    p = planned(Norm, InPlace)
    assert p.mode == BY_SEED and p.unknown == ["linear.weight"]
    assert [t.name for t in p.taken] == ["linear.bias", "last.weight", "last.bias"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(8, 8), nn.Linear(8, 8, bias=False)
        self.head.weight = self.table.weight


class Once(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 8)


def test_what_is_tied_may_be_kept_once() -> None:
    r = reference_of(Tied)
    assert r.tied == [0, 0]
    assert planned(Tied, Once).mode == BY_NAME and not planned(Tied, Once).left
    state = secret_draws.perturbed([e.value for e in r.entries], r.moved, r.tied, 5)
    assert torch.equal(state[0], state[1]) and not torch.equal(state[0], r.entries[0].value)


class Reordered(nn.Module):
    """The reference's names, made in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.q, self.v = (nn.Linear(8, 8) for _ in range(3))


def test_a_name_that_its_value_contradicts() -> None:
    p = planned(Three, Reordered)
    assert p.mode == BY_VALUE and {t.name: t.of for t in p.taken}["k.weight"] == (0,)
    assert p.other is not None and p.other.mode == BY_NAME and p.other.whole
    assert planned(Three, Three).other is None and planned(Linear, Square).other is not None


@pytest.mark.parametrize("shapes, looked", [([(8, 8)], [0]), ([(3, 5), (64,)], [1])])
def test_what_is_worth_looking_at(shapes: Sequence[tuple[int, ...]], looked: list[int]) -> None:
    own = [Entry(str(i), torch.empty(s, device="meta")) for i, s in enumerate(shapes)]
    assert weights.to_look_at(reference_of(Linear), own) == looked
    huge = [Entry("huge", torch.empty(1 << 40, 8, device="meta"))]
    assert weights.to_look_at(reference_of(Linear), huge) == []
