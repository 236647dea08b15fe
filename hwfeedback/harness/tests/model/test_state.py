"""What a model carries from call to call: what is found of it, and what is put and collected."""

from __future__ import annotations

import pathlib
from collections import deque, namedtuple
from typing import Any

import pytest
import torch
from evaluating import Evaluator, processes_of
from test_bad_references import whole
from test_master_rule import Compiled

from kwharness.base.calibration import Calibration
from kwharness.base.carried import NOTHING, Carried
from kwharness.base.protocol import ProtocolError
from kwharness.base.tensors import Spec, specs_of
from kwharness.model import slots, state
from kwharness.model.state import Carrier
from kwharness.verify import verify
from kwharness.verify.verification import Verification

CASES = pathlib.Path(__file__).parents[1] / "cases" / "state"


def carried(model: torch.nn.Module, *names: str, written: tuple[int, ...] = ()) -> Carried:
    there = slots.slots(model)
    specs = specs_of([there[n].get() for n in names])
    inputs = [f"input {i}" for i in written]
    return Carried(list(names), specs, list(written), inputs, given=1, returned=1)


class Odd(torch.nn.Module):
    """Holds tensors wherever one may."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("hidden", torch.zeros(2), persistent=False)
        self.plain = torch.zeros(4)
        self.layers = [{"k": torch.zeros(5)}, {"k": torch.zeros(5)}]
        self.inner = torch.nn.BatchNorm1d(3)
        self.none = None


def test_tensors_are_found_wherever_they_are_held() -> None:
    found = slots.slots(Odd())
    assert set(found) == {
        "weight", "mean", "hidden", "plain", "layers.0.k", "layers.1.k", "inner.weight",
        "inner.bias", "inner.running_mean", "inner.running_var", "inner.num_batches_tracked",
    }  # fmt: skip
    assert {n for n, s in found.items() if s.trained} == {"weight", "inner.weight", "inner.bias"}


def test_content_is_put_where_the_tensor_is_and_collected_where_it_is_then() -> None:
    model = Odd()
    address = model.mean.data_ptr()
    carrier = Carrier(model, carried(model, "mean", "layers.1.k", written=(0,)))
    given = [torch.ones(2), torch.full((3,), 2.0), torch.full((5,), 3.0)]
    (x,) = carrier.prepare(given)
    assert torch.equal(model.mean, given[1]) and model.mean.data_ptr() == address
    x.mul_(7)
    model.mean = model.mean + 1  # another tensor in its place
    model.layers[1]["k"].add_(1)
    after = carrier.collect([x])
    assert [t.tolist() for t in after] == [[3.0] * 3, [4.0] * 5, [7.0] * 2]
    assert given[0].tolist() == [1.0, 1.0], "it got a copy"
    carrier.prepare(given)
    assert model.mean.data_ptr() == address and torch.equal(model.mean, given[1])
    carrier.prepare([given[0], torch.zeros(3), torch.zeros(5)], goes_on=True)
    assert torch.equal(model.mean, given[1]), "it goes on with what it has"
    carrier.put_back()
    assert not model.mean.any() and not model.layers[1]["k"].any()


Pair = namedtuple("Pair", "k v")


class Rebuilt(torch.nn.Module):
    """Replaces all that holds its state in each call."""

    def __init__(self) -> None:
        super().__init__()

        def new() -> torch.Tensor:
            return torch.zeros(3)

        self.list = [new(), new()]
        self.tuple = (new(), new())
        self.pair = Pair(new(), new())
        self.deep = {"k": new(), "layers": [(new(), {"v": new()})]}
        self.last = deque([new(), new()], maxlen=2)
        self.most = torch.max(torch.zeros(3, 2), 1)
        self.fixed = (torch.ones(3), 2)

    def forward(self, x: torch.Tensor) -> None:
        self.list = [t + x for t in self.list]
        self.tuple = (x, self.tuple[0])
        self.pair = Pair(x, x + self.pair.v)
        self.deep = {"k": x, "layers": [(x + 1, {"v": x + 2})]}
        self.last.append(x)
        self.most = torch.max(torch.stack([x, x + 1], 1), 1)


REBUILT = (
    "list.0", "list.1", "tuple.0", "tuple.1", "pair.0", "pair.1", "deep.k", "deep.layers.0.0",
    "deep.layers.0.1.v", "last.0", "last.1", "most.0", "most.1",
)  # fmt: skip


def test_state_is_found_in_what_a_forward_replaces() -> None:
    model = Rebuilt()
    before = state.Before(model)
    for k in range(2):  # some of it comes to another place in the second call only
        model(torch.full((3,), k + 1.0))
        before.look()
    assert tuple(before.changed) == REBUILT and not before.unkept, "in the model's order"
    before.put_back()
    assert not any(s.get().any() for n, s in slots.slots(model).items() if n in REBUILT)
    assert isinstance(model.pair, Pair) and model.last.maxlen == 2


def test_content_is_put_into_what_a_forward_has_replaced() -> None:
    model = Rebuilt()
    carrier = Carrier(model, carried(model, *REBUILT))
    own = {n: s.get() for n, s in slots.slots(model).items()}
    content = [torch.full_like(own[n], i) for i, n in enumerate(REBUILT)]

    def as_it_was() -> bool:
        return all(s.get() is own[n] for n, s in slots.slots(model).items())

    x = torch.full((3,), 100.0)
    for _ in range(2):
        carrier.prepare([x, *content])
        assert as_it_was()
        assert model.list[1].tolist() == [1.0] * 3 and model.fixed[1] == 2
        model(x)
        after = [int(t[0]) for t in carrier.collect([])]
        assert after == [100, 101, 100, 2, 100, 105, 100, 101, 102, 10, 100, 101, 1]
    model.list, model.deep, model.pair = None, {"layers": []}, torch.ones(2, 3)
    assert [int(t[0]) for t in carrier.collect([])][:2] == [0, 1], "what is gone is unchanged"
    carrier.put_back()
    assert as_it_was() and len(slots.slots(model)) == len(own)


def test_what_grows_and_numbers_in_containers_cannot_be_put_back() -> None:
    model = torch.nn.Module()
    model.seen, model.kept = [torch.zeros(2)], {"m": torch.zeros(2), "n": 0}
    model.left = (torch.zeros(2), torch.zeros(2))
    before = state.Before(model)
    model.seen.append(torch.ones(2))
    model.seen[0] += 1
    model.kept = {"m": torch.ones(2), "n": 1}
    model.left = (torch.ones(2),)
    before.look()
    assert before.unkept == ["seen", "kept.n", "left"]
    assert list(before.changed) == ["kept.m"], "nothing of a list that has another length"


def test_state_that_lies_in_an_input_stays_when_that_changes() -> None:
    model = Rebuilt()
    carrier = Carrier(model, carried(model, "tuple.0", "tuple.1"))
    x = torch.ones(3)
    model(x)
    carrier.settle([x])
    x.fill_(9)
    assert model.tuple[0].tolist() == [1.0] * 3


def test_state_in_a_container_is_matched_with_flat_buffers_in_order() -> None:
    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("z", "y"):
                self.register_buffer(name, torch.zeros(3))

    model = Flat()
    carrier = Carrier(model, carried(Rebuilt(), "tuple.0", "tuple.1"))
    carrier.prepare([torch.ones(3), torch.full((3,), 1.0), torch.full((3,), 2.0)])
    assert model.z.tolist() == [1.0] * 3 and model.y.tolist() == [2.0] * 3


def test_a_tensor_in_place_tells_that_it_has_changed() -> None:
    t = torch.zeros(8)
    before = t._version
    state.write(t, torch.ones(8))
    assert t._version > before and t.sum() == 8


def test_content_of_another_shape_is_refused() -> None:
    model = Odd()
    carrier = Carrier(model, carried(model, "mean"))
    with pytest.raises(ValueError, match="state mean of another shape"):
        carrier.prepare([torch.ones(1), torch.zeros(1)])


def test_state_is_found_by_name_and_else_by_shape_dtype_and_order() -> None:
    class Other(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("fixed", torch.ones(3))
            self.first, self.second = torch.zeros(3), torch.zeros(3)
            self.register_buffer("at", torch.zeros(1, dtype=torch.int32))

    class Theirs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.zeros(3))
            self.register_buffer("b", torch.zeros(3))
            self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

    model = Other()
    names = carried(Theirs(), "a", "b", "at")
    carrier = Carrier(model, names, others=["fixed"])
    assert carrier.lacks == ["at"], "of another dtype"
    content = [torch.ones(1), torch.full((3,), 1.0), torch.full((3,), 2.0), torch.tensor([5])]
    carrier.prepare(content)
    assert model.first.tolist() == [1.0] * 3 and model.second.tolist() == [2.0] * 3
    assert model.fixed.tolist() == [1.0] * 3 and not model.at.any()
    assert carrier.collect([])[2].tolist() == [5], "what it lacks counts as unchanged"


def test_states_are_reached_up_to_where_a_position_comes_round() -> None:
    class Ring(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.at = torch.zeros(1, dtype=torch.int64)

    model = Ring()
    carrier = Carrier(model, carried(model, "at"))

    def call(_: int) -> None:
        model.at.copy_((model.at + 1) % 40)

    found = [int(s[0]) for s in state.reach(carrier, call, lambda: 0.0)]
    assert found == [0, 1, 2, 3, 5, 8, 37, 38, 39] and int(model.at) == 0

    def ends(_: int) -> None:
        if int(model.at) == 20:
            raise IndexError
        model.at.add_(1)

    found = [int(s[0]) for s in state.reach(carrier, ends, lambda: 0.0)]
    assert max(found) == 19, "from where it raises no call begins"


def test_floats_are_moved_and_whole_numbers_are_not() -> None:
    cache = torch.zeros(64, 8)
    cache[3] = 2.0
    held = [torch.arange(4), cache, torch.tensor([float("-inf"), 1.0]), torch.tensor([True])]
    moved = state.perturbed(held, 1)
    assert torch.equal(moved[0], held[0]) and torch.equal(moved[3], held[3])
    assert bool((moved[1] != cache).all()) and bool((moved[1] >= 0).all())
    assert 0.05 < float(moved[1][10:].std()) < 0.4, "a part of what is there"
    assert float(moved[2][0]) == -float("inf") and float(moved[2][1]) != 1.0
    assert all(map(torch.equal, moved, state.perturbed(held, 1)))
    assert not torch.equal(moved[1], state.perturbed(held, 2)[1])


# What inspection makes of a reference: the state that it finds, and the inputs that are written.
FOUND: dict[str, tuple[str, list[str], list[str]]] = {
    "buffer": (
        whole(
            construct="self.register_buffer('m', torch.zeros(8))",
            forward="self.m.lerp_(x.mean(0), 0.1); return x - self.m",
        ),
        ["m"],
        [],
    ),
    "attribute": (
        whole(
            construct="self.m = torch.zeros(8); self.fixed = torch.ones(8)",
            forward="self.m = self.m * 0.5 + x[0]; return x - self.m * self.fixed",
        ),
        ["m"],
        [],
    ),
    "list": (
        whole(
            construct="self.caches = [torch.zeros(8), torch.zeros(8)]",
            forward="self.caches[1].add_(x[0]); return x + self.caches[0] + self.caches[1]",
        ),
        ["caches.1"],
        [],
    ),
    "list that is rebuilt": (
        whole(
            construct="self.cache = [torch.zeros(8), torch.zeros(8)]",
            forward="k, v = self.cache; self.cache = [k * 0.5 + x[0], v + x.mean(0)]\n"
            "        return x - self.cache[0] * self.cache[1]",
        ),
        ["cache.0", "cache.1"],
        [],
    ),
    "tuple with the input itself": (
        whole(
            construct="self.past = (torch.zeros(4, 8), torch.zeros(8))",
            forward="before, m = self.past; self.past = (x, m * 0.5 + x[0])\n"
            "        return x - before + self.past[1]",
            inputs="return [torch.randn(4, 8)]",
        ),
        ["past.0", "past.1"],
        [],
    ),
    "dict with a constant": (
        whole(
            construct="self.c = {'m': torch.zeros(8), 'in': [{'n': torch.zeros(8)}]}; "
            "self.fixed = (torch.eye(8),)",
            forward="self.c = {'m': self.c['m'] * 0.5 + x[0], 'in': [{'n': self.c['m']}]}\n"
            "        return x @ self.fixed[0] - self.c['m'] + self.c['in'][0]['n']",
        ),
        ["c.m", "c.in.0.n"],
        [],
    ),
    "queue": (
        whole(
            "from collections import deque",
            construct="self.last = deque([torch.zeros(8) for _ in range(3)], maxlen=3)",
            forward="self.last.append(x[0] * 2); return x + torch.stack([*self.last]).sum(0)",
        ),
        ["last.0", "last.1", "last.2"],
        [],
    ),
    "list that nobody reads": (
        whole(construct="self.seen = []", forward="self.seen.append(x * 2); return x + 1"),
        [],
        [],
    ),
    "input": (whole(forward="return nn.functional.relu(x, inplace=True)"), [], ["x"]),
    "input of the same content": (whole(forward="x.mul_(1); return x * 2"), [], ["x"]),
    "both": (
        whole(
            construct="self.m = torch.zeros(8); self.n = torch.zeros((), dtype=torch.int64)",
            forward="self.n.add_(1); self.m.add_(x.add_(1).mean(0)); return x - self.m / self.n",
        ),
        ["m", "n"],
        ["x"],
    ),
    "nothing": (whole(), [], []),
    "made in the first call": (
        whole(
            construct="self.table = None",
            forward="self.table = torch.ones(8) if self.table is None else self.table\n"
            "        return x * self.table",
        ),
        [],
        [],
    ),
    "left behind": (
        whole(construct="self.seen = None", forward="self.seen = x * 2; return self.seen + 1"),
        [],
        [],
    ),
    "a count that nobody reads": (
        whole(construct="self.calls = 0", forward="self.calls += 1; return x * 2"),
        [],
        [],
    ),
    "batch norm": (
        whole(construct="self.n = nn.BatchNorm1d(8)", forward="return self.n(x)"),
        [],
        [],
    ),
    "batch norm beside state": (
        whole(
            construct="self.n = nn.BatchNorm1d(8); self.m = torch.zeros(8)",
            forward="self.m.add_(x[0]); return self.n(x) + self.m",
        ),
        ["m"],
        [],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_inspection_finds_what_is_carried(evaluator: Evaluator, name: str) -> None:
    source, names, written = FOUND[name]
    task = evaluator.task(source)
    notes = " ".join(task["notes"])
    kept = f"A forward changes the model's state ({', '.join(names)}):"
    wrote = f"A forward writes into its inputs ({', '.join(written)}):"
    assert (kept in notes) == bool(names), notes
    assert (wrote in notes) == bool(written), notes
    assert ("evaluated in eval mode" in notes) == name.startswith("batch norm"), notes
    assert task["flags"] == ["train_mode_dependent"] * name.startswith("batch norm")


@pytest.mark.parametrize("name", FOUND)
def test_the_reference_itself_is_right(evaluator: Evaluator, name: str) -> None:
    source = FOUND[name][0]
    itself = source.replace("class Model(", "class ModelNew(")
    v = evaluator.verdict(source, itself, policy="any")
    assert v["status"] == "correct", v["reason"]


def test_a_state_that_runs_off_its_end_is_judged_as_far_as_it_goes(evaluator: Evaluator) -> None:
    source = whole(
        construct="self.k = torch.zeros(9, 8); self.at = torch.zeros(1, dtype=torch.int64)",
        forward="self.k[int(self.at)] = x[0]; self.at += 1; return x @ self.k.t()",
    )
    v = evaluator.verdict(source, source.replace("class Model(", "class ModelNew("))
    assert v["status"] == "correct", v["reason"]


def test_state_lies_in_an_input_only_where_the_references_does(evaluator: Evaluator) -> None:
    source = whole(
        construct="self.last = torch.zeros(8, 8)",
        forward="last, self.last = self.last, x.clone(); return x - last",
    )
    candidate = source.replace("class Model(", "class ModelNew(").replace("x.clone()", "x")
    v = evaluator.verdict(source, candidate)
    assert v["status"] == "wrong" and "state last lies in the memory of input 0" in v["reason"]
    reference = source.replace("x.clone()", "x")
    assert evaluator.verdict(reference, candidate)["status"] == "correct"


def test_what_an_answer_is_called() -> None:
    what = Carried(["m"], [Spec("float32", [8])], [2], ["cache"], given=3, returned=2)
    said = [what.output(i) for i in range(4)]
    assert said == ["output 0", "output 1", "state m", "input cache after the call"]
    assert NOTHING.output(3) == "output 3"
    assert Carried.from_json(what.to_json()) == what


@pytest.mark.parametrize(
    "wrong",
    [
        {"names": ["a"]},
        {"written": [9], "inputs": ["x"]},
        {"given": None},
        {"specs": [{}]},
        {"names": ["a"], "specs": [{"dtype": "load", "shape": [2]}]},
        {"names": ["a"], "specs": [{"dtype": "int8", "shape": [-2]}]},
    ],
    ids=str,
)
def test_what_a_worker_says_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        Carried.from_json({**NOTHING.to_json(), **wrong})


@pytest.mark.parametrize("name", ["both", "attribute", "list that is rebuilt"])
def test_the_compiled_reference_is_right(evaluator: Evaluator, name: str) -> None:
    source = FOUND[name][0]
    known = evaluator.calibration(source)
    request = {**evaluator.request(source, "", "quick", {}), "known": known}
    processes = processes_of(evaluator.server, request)
    calibration = Calibration.from_json(known["calibration"])
    assert calibration is not None and calibration.carried
    reference, candidate = (processes.reference(compiles=True, timeout=300) for _ in range(2))
    try:
        verification = Verification(reference, calibration, "quick")
        verification.prepare()
        candidate.set_state(verification.state)
        report = verify.run(verification, Compiled(candidate, "compile"))  # type: ignore[arg-type]
        assert all(f["passed"] for f in report.to_json()["families"] if f["gates"])
    finally:
        reference.kill()
        candidate.kill()
