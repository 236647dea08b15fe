"""What every construction gives weights is found, and moved where a model is made again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from kwharness.model import construction
from kwharness.model.construction import Breaks
from kwharness.verify import initial_weights
from kwharness.verify.initial_weights import Look, Shared

Make = Callable[[], nn.Module]


def model_of(fill: Callable[[nn.Module], None]) -> Make:
    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            fill(self)

    return Made


def made(make: Make, seed: int, breaks: Breaks | None = None) -> dict[str, torch.Tensor]:
    with construction.under(seed, breaks) as drawn:
        model = make()
        drawn.finish(model)
    return {n: t.detach() for n, t in model.state_dict().items()}


def looked(state: dict[str, torch.Tensor]) -> Look:
    return initial_weights.look(list(state), list(state.values()), set(state))


def shared_by(make: Make) -> Shared:
    looks = [looked(made(make, seed)) for seed in range(8)]
    names = list(looks[0].digests)
    return initial_weights.found(looks, set(names), {n: n for n in names})


def to_break(make: Make, names: list[str], seed: int = 7) -> Breaks:
    known: dict[str, dict] = {}
    for name, t in made(make, seed).items():
        if name in names:
            found = construction.to_break(t)
            known.setdefault(found.digest, found)
    return Breaks(list(known.values()))


def weight(t: Callable[[], torch.Tensor]) -> Make:
    return model_of(lambda m: setattr(m, "weight", nn.Parameter(t())))


def filled(fill: Callable[[torch.Tensor], object], *shape: int) -> Make:
    def begin(m: nn.Module) -> None:
        m.weight = nn.Parameter(torch.empty(shape))
        fill(m.weight)

    return model_of(begin)


def _gates(m: nn.Module) -> None:
    m.weight = nn.Parameter(torch.empty(64, 16))
    for part in m.weight.chunk(4):
        nn.init.orthogonal_(part.data)


def _reloaded(m: nn.Module) -> None:
    m.a, m.b = nn.Linear(16, 16), nn.Linear(16, 16)
    m.b.load_state_dict(m.a.state_dict())


def _chained(m: nn.Module) -> None:
    m.a = nn.Linear(16, 16)
    m.b = copy.deepcopy(m.a)
    m.c = copy.deepcopy(m.b)


FOUND: dict[str, tuple[Make, str]] = {
    "orthogonal": (filled(nn.init.orthogonal_, 32, 48), "is orthogonal"),
    "of_a_gain": (filled(lambda t: nn.init.orthogonal_(t, 1.5), 48, 32), "is orthogonal"),
    "gates": (model_of(_gates), "is orthogonal"),
    "identity": (weight(lambda: torch.eye(24)), "gives the same values"),
    "filled_identity": (filled(lambda t: nn.init.eye_(t), 24, 24), "gives the same values"),
    "dirac": (filled(lambda t: nn.init.dirac_(t), 16, 16, 3), "elements that are the same"),
    "triangle": (weight(lambda: torch.randn(24, 24).tril()), "is lower triangular"),
    "rows": (weight(lambda: torch.randn(1, 24).repeat(16, 1)), "repeats itself along dimension 0"),
    "symmetric": (weight(lambda: (lambda a: a + a.t())(torch.randn(24, 24))), "is symmetric"),
    "sorted": (weight(lambda: torch.randn(64).sort().values), "is sorted along dimension 0"),
    "large_rows": (weight(lambda: torch.randn(1, 600).repeat(900, 1)), "repeats itself"),
    "reloaded": (model_of(_reloaded), "that a.weight and b.weight are the same"),
    "chained": (model_of(_chained), "that a.weight, b.weight and c.weight are the same"),
}


@pytest.mark.parametrize("name", FOUND)
def test_it_is_found_and_moved(name: str) -> None:
    make, says = FOUND[name]
    shared = shared_by(make)
    assert any(says in told for told in shared.told()), shared
    breaks = to_break(make, shared.names())
    state = made(make, 7, breaks)
    assert all(breaks.times)
    assert not shared.still(looked(made(make, 7)), looked(state)).told()
    # As with the limits that a candidate has, and where a device is named for what is made.
    again = Breaks([replace(k, times=n) for k, n in zip(breaks._known, breaks.times, strict=True)])
    with torch.device("cpu"):
        same = made(make, 7, again)
    assert all(torch.equal(state[n], t) for n, t in same.items())


def _many(m: nn.Module) -> None:
    m.linear, m.conv, m.norm = nn.Linear(300, 300), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16)
    m.table, m.rnn = nn.Embedding(50, 20, padding_idx=0), nn.LSTM(16, 16)
    m.normal, m.wide = nn.Parameter(torch.randn(2, 1000)), nn.Parameter(torch.rand(3, 4096))
    m.one, m.scale = nn.Parameter(torch.randn(1)), nn.Parameter(torch.ones(16))
    m.few, m.single = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(()))
    m.short = nn.Parameter(torch.randn(64, 64).bfloat16())


def test_usual_weights_share_nothing() -> None:
    assert not shared_by(model_of(_many)).told()


def test_what_is_made_otherwise_is_not_moved() -> None:
    """As by an initialiser that was imported by its name before. It is told."""
    fill = nn.init.eye_
    make = filled(lambda t: fill(t), 24, 24)
    breaks = to_break(make, ["weight"])
    state = made(make, 7, breaks)
    assert breaks.times == [0]
    shared = shared_by(make)
    assert shared.still(looked(made(make, 7)), looked(state)).told() == shared.told() != []


def test_a_plain_tensor_is_moved_by_the_same_initialiser() -> None:
    """A candidate may pack a tensor that was never a parameter."""
    fill = FOUND["orthogonal"][0]
    packed = model_of(lambda m: setattr(m, "packed", nn.Parameter(3 * plain())))

    def plain() -> torch.Tensor:
        return nn.init.orthogonal_(torch.empty(32, 48))

    breaks, its = to_break(fill, ["weight"]), to_break(fill, ["weight"])
    weight, packs = made(fill, 7, breaks)["weight"], made(packed, 7, its)["packed"]
    assert breaks.times == its.times and torch.equal(packs, 3 * weight)


def test_other_bits_of_the_same_are_known_again() -> None:
    """As of a factorisation with another number of threads. Other content is not."""
    content = torch.randn(32, 48)
    near, other = content * (1 + 1e-6 * torch.randn(32, 48)), content + 0.01 * torch.randn(32, 48)
    for t, times in ((near, 1), (other, 0)):
        breaks = Breaks([construction.to_break(content)])
        made(weight(t.clone), 7, breaks)
        assert breaks.times == [times]


def test_copies_of_ones_own_stay() -> None:
    """A candidate that copies what the reference does not copy has what it copied."""

    def more(m: nn.Module) -> None:
        _reloaded(m)
        m.mine = nn.Parameter(m.a.weight.detach().clone())

    known = to_break(model_of(_reloaded), ["a.weight", "b.weight"])._known
    breaks = Breaks([replace(k, times=1) for k in known])
    state = made(model_of(more), 7, breaks)
    assert breaks.times == [1] and not torch.equal(state["a.weight"], state["b.weight"])
    assert torch.equal(state["mine"], state["a.weight"])


def test_a_variance_stays_positive_and_other_draws_stay() -> None:
    def fill(m: nn.Module) -> None:
        m.steps = nn.Parameter(torch.arange(64.0) / 64)
        m.linear = nn.Linear(8, 8)

    breaks = to_break(model_of(fill), ["steps"])
    plain, moved = made(model_of(fill), 7), made(model_of(fill), 7, breaks)
    assert breaks.times == [1] and (moved["steps"] >= 0).all()
    assert 0.02 < float((moved["steps"] - plain["steps"]).std()) < 0.12
    assert torch.equal(plain["linear.weight"], moved["linear.weight"])


def test_nothing_stays_of_it() -> None:
    before = torch.Tensor.copy_, torch.Tensor.mul_, nn.init.eye_
    made(model_of(_reloaded), 7, to_break(model_of(_reloaded), ["b.weight"]))
    assert before == (torch.Tensor.copy_, torch.Tensor.mul_, nn.init.eye_)
