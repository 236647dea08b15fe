"""Certified files, used as whoever takes one home uses it: in an interpreter of his own, beside the
reference, in which nothing of ours is imported.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from evaluating import Evaluator

from kwharness.export import file_loader
from kwharness.standalone import usage

FILES = pathlib.Path(__file__).parents[1] / "handed_out"
# What its user does. A line names a folder; what comes back are the ways that went wrong.
USER = r"""
import contextlib, copy, importlib.util, io, json, pathlib, pickle, sys, threading
import torch

def imported(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [t for v in values for t in tensors(v)] if isinstance(value, (list, tuple, dict)) else []

def mapped(value, f):
    if isinstance(value, torch.Tensor):
        return f(value)
    if isinstance(value, dict):
        return {k: mapped(v, f) for k, v in value.items()}
    return type(value)(mapped(v, f) for v in value) if isinstance(value, (list, tuple)) else value

def alike(got, expected):
    for a, b in zip(tensors(got), tensors(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)

def raises(error, says, call):
    try:
        call()
    except error as e:
        assert says in str(e), f"it says: {e}"
        return
    raise AssertionError("nothing was raised")

def used(folder):
    folder, wrong = pathlib.Path(folder), []
    theirs = imported(folder / "reference.py", "reference")
    file = imported(folder / "task.best.py", "best")
    names, arguments = json.loads((folder / "names.json").read_text())
    init = theirs.get_init_inputs()
    torch.manual_seed(5)
    reference = theirs.Model(*init).eval()
    torch.manual_seed(6)
    inputs = theirs.get_inputs()
    fresh = lambda: mapped(inputs, torch.clone)
    begins = copy.deepcopy(reference.state_dict())

    def expected(state=begins):
        reference.load_state_dict(state)
        with torch.no_grad():
            return mapped(reference(*fresh()), torch.clone)

    def made(seed=5, **named):
        torch.manual_seed(seed)
        return file.ModelNew(**named) if named else file.ModelNew(*init)

    def called(model, args=None, **named):
        with torch.no_grad():
            return model(**named) if named else model(*(args or fresh()))

    def constructed():
        model = made()
        for name, value in begins.items():
            own = model.state_dict().get(name, value)
            assert torch.equal(own, value), name
        alike(called(model), expected())

    def by_keyword():
        model = made(**dict(zip(names, init, strict=True)))
        alike(called(model, **dict(zip(arguments, fresh(), strict=True))), expected())

    def with_its_state():
        model = made(seed=9)
        if hasattr(model, "load_reference_state"):
            with torch.no_grad():
                model.load_reference_state(begins)
        else:
            model.load_state_dict(begins)
        alike(called(model), expected())

    def saved():
        at, model = io.BytesIO(), made()
        torch.save(model.state_dict(), at)
        at.seek(0)
        other = made(seed=9)
        other.load_state_dict(pickle.loads(pickle.dumps(torch.load(at))))
        alike(called(other), expected())

    def in_threads():
        right, found = expected(), []
        def run():
            found.append(called(copy.deepcopy(model)))
        model = made()
        both = [threading.Thread(target=run) for _ in range(2)]
        [t.start() for t in both], [t.join() for t in both]
        assert len(found) == 2
        [alike(f, right) for f in found]

    def one_thread():
        torch.set_num_threads(1)
        try:
            alike(called(made()), expected())
        finally:
            torch.set_num_threads(2)

    def gradients():
        asks = any(t.is_floating_point() for t in tensors(inputs))
        asking = mapped(inputs, lambda t: t.clone().requires_grad_(t.is_floating_point()))
        if asks or list(made().parameters()):
            raises(RuntimeError, "torch.no_grad()", lambda: made()(*asking))

    def as_what_it_is_not():
        model = made()
        other = lambda t: t.double() if t.dtype != torch.float64 else t.float()
        raises(TypeError, "must be torch.", lambda: called(model, mapped(inputs, other)))
        array = lambda t: [1] if t.dtype == torch.bfloat16 else t.numpy()
        raises(TypeError, "must be a torch.Tensor", lambda: called(model, mapped(inputs, array)))
        raises(ValueError, "meta", lambda: called(model, mapped(inputs, lambda t: t.to("meta"))))
        raises(ValueError, "", lambda: called(model, mapped(inputs, lambda t: t[:0])))
        raises(ValueError, "shape", lambda: called(model, mapped(inputs, lambda t: t[None])))
        alike(called(model), expected())

    ways = {
        "constructed": constructed,
        "by keyword": by_keyword,
        "in eval()": lambda: alike(called(made().eval()), expected()),
        "in train()": lambda: alike(called(made().train()), expected()),
        "the reference's state": with_its_state,
        "deep-copied": lambda: alike(called(copy.deepcopy(made())), expected()),
        "moved": lambda: alike(called(made().to("cpu")), expected()),
        "in other memory": lambda: alike(called(made()._apply(torch.clone)), expected()),
        "saved": saved,
        "in two threads": in_threads,
        "in one thread": one_thread,
        "gradients": gradients,
        "what it is not right for": as_what_it_is_not,
    }
    for name, way in ways.items():
        try:
            way()
        except BaseException as e:
            wrong.append(f"{name}: {type(e).__name__}: {e}")
    said = file.__doc__ or ""
    if "Inference only" not in said or "task.certificate.json" not in said:
        wrong.append(f"its docstring: {said!r}")
    return wrong

for line in sys.stdin:
    try:
        print(json.dumps(used(line.strip())), flush=True)
    except BaseException as e:
        print(json.dumps([f"not used at all: {type(e).__name__}: {e}"]), flush=True)
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[pathlib.Path], Any]]:
    """An interpreter that does what it is told of a folder."""
    home = tmp_path_factory.mktemp("home")
    (home / "user.py").write_text(USER)
    folder = str(pathlib.Path(sys.executable).parent)  # where ninja lies
    env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(home),
        "OMP_NUM_THREADS": "2",
        "GOMP_SPINCOUNT": "0",
    }
    with subprocess.Popen(
        [sys.executable, "-I", "-B", str(home / "user.py")],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        writes, reads = process.stdin, process.stdout

        def uses(given: pathlib.Path) -> Any:
            writes.write(f"{given}\n")
            writes.flush()
            return json.loads(reads.readline())

        yield uses
        process.stdin.close()


NAMES: dict[str, tuple[list[str], list[str]]] = {
    "weights": (["n"], ["x"]),
    "two_inputs": ([], ["x", "gain"]),
    "rows": ([], ["x"]),
    "softmax": ([], ["x"]),
    "half": ([], ["x"]),
    "bfloat16": ([], ["x"]),
    "integers": ([], ["x"]),
    "state": (["width"], ["x"]),
    "keyword_only": (["n"], ["x"]),
    "dict_of_inputs": ([], ["pair"]),
    "two_outputs": ([], ["x"]),
    "own_way_to_load": (["n"], ["x"]),
    "extension": ([], ["x"]),
    "made_source": ([], ["x"]),
    "mask": ([], ["x", "mask"]),
}


@pytest.mark.parametrize("name", NAMES)
def test_it_does_what_its_user_asks_of_it(
    evaluator: Evaluator, user: Callable[[pathlib.Path], Any], tmp_path: pathlib.Path, name: str
) -> None:
    reference, candidate = (FILES / f"{name}{end}.py" for end in ("", "_new"))
    v = evaluator.verdict(
        reference.read_text(), candidate.read_text(), "certify", built=True, cold=True
    )
    assert v["status"] == "certified", v["reason"]
    assert any(e.startswith("used as its users do") for e in v["evidence"]), v["evidence"]
    assert (file_loader.MARK in v["exported"]) == (name not in ("extension", "made_source"))
    (tmp_path / "reference.py").write_text(reference.read_text())
    (tmp_path / "task.best.py").write_text(v["exported"])
    (tmp_path / "names.json").write_text(json.dumps(NAMES[name]))
    assert user(tmp_path) == []


GAIN = "GAIN = 1.0\n\n\nclass Model"
WEIGHTS = (FILES / "own_way_to_load.py").read_text().replace("class Model", GAIN)
WEIGHTS = WEIGHTS.replace("torch.randn(n)", "torch.randn(n) * GAIN")
ALIKE = (FILES / "weights_new.py").read_text()
OWN_WAY = (FILES / "own_way_to_load_new.py").read_text()
RENAMED = ALIKE.replace("self.scale", "self.factors").replace("torch.empty", "torch.randn")
CHANGED = WEIGHTS.replace("GAIN = 1.0", "GAIN = [1.0]").replace("* GAIN", "* GAIN[0]")
CHANGED = CHANGED.replace("    return [32]", "    GAIN[0] = 0.02\n    return [32]")
MULTIPLIED = WEIGHTS.replace("GAIN = 1.0", "GAIN = 1.0\nGAIN *= 0.02")
FAILS = WEIGHTS.replace("GAIN = 1.0", "GAIN = 1.0\nclass Here:\n    GAIN = GAIN\nGAIN = Here.GAIN")
TAKES = "takes the reference's state_dict"


@pytest.mark.parametrize(
    ("reference", "candidate", "same", "says"),
    [
        (WEIGHTS, ALIKE, True, f"load_state_dict {TAKES}"),
        (MULTIPLIED, ALIKE, False, f"load_state_dict {TAKES}"),
        (MULTIPLIED, OWN_WAY, False, f"load_reference_state {TAKES}"),
        (CHANGED, OWN_WAY, False, f"load_reference_state {TAKES}"),
        (FAILS, ALIKE, False, f"load_state_dict {TAKES}"),
        (WEIGHTS, RENAMED, True, "load_state_dict takes what ModelNew's own state_dict() gave"),
    ],
    ids=["alike", "multiplied", "own way", "changed", "fails", "renamed"],
)
def test_what_it_says_of_its_weights_is_so(
    evaluator: Evaluator, reference: str, candidate: str, same: bool, says: str
) -> None:
    """Where the reference's constructor cannot stand in the file, or makes other weights there, the
    file says that it does not make them.
    """
    v = evaluator.verdict(reference, candidate, "certify", built=True, cold=True)
    assert v["status"] == "certified", v["reason"]
    said = next(n for n in v["exported"].splitlines() if n.startswith("Weights: "))
    assert says in said
    assert ("; made as the reference makes them, under one seed the same." in said) == same


def test_a_function_in_the_place_of_a_class_is_named(evaluator: Evaluator) -> None:
    made = OWN_WAY.replace("class ModelNew", "class Fast")
    made += "\n\ndef ModelNew(n):\n    return Fast(n)\n"
    v = evaluator.verdict(WEIGHTS, made, "quick")
    assert v["status"] != "correct"
    assert "defines no class ModelNew: its ModelNew is a function" in v["reason"]


class Twice(torch.nn.Module):
    """A kernel's stand-in, which has one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((3,), 2.0))
        self.kept = self.scale.detach()
        self.lock: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("call it under torch.no_grad()")
        return x * self.scale


class Trains(Twice):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if self.training else x


class Locked(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Keeps(Twice):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept.data_ptr() != self.scale.data_ptr():
            return x
        return super().forward(x)


class Forgets(Twice):
    def _save_to_state_dict(self, *_: Any) -> None:
        pass


class Silent(Twice):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach() * self.scale.detach()


class Alone(Twice):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("not in this thread")
        return super().forward(x)


class Other(Twice):
    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return super().forward(y)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (Twice, ""),
        (Other, "called by keyword, it raises TypeError: .*'x'"),
        (Trains, r"in eval\(\), it computes something else"),
        (Locked, "deep-copied, it raises TypeError: cannot pickle"),
        (Keeps, "deep-copied, it computes something else|moved, it computes something else"),
        (
            Forgets,
            "given the state that it was saved with, it raises",
        ),
        (Alone, "in two threads, it raises ValueError: not in this thread"),
        (Silent, "asked for gradients, it gives an output without them and says nothing"),
    ],
)
def test_what_a_user_would_stumble_on_has_its_name(made: type[Twice], says: str) -> None:
    x = torch.randn(4, 3)

    def call(
        model: torch.nn.Module, *, keywords: bool = False, gradients: bool = False
    ) -> list[torch.Tensor]:
        given = x.clone().requires_grad_() if gradients else x
        return [model(x=given) if keywords else model(given)]

    def construct(*, keywords: bool = False) -> torch.nn.Module:
        return made()

    file = usage.File(construct, lambda _: None, call, [x], (True, True), False, "cpu")
    model = made()
    with torch.no_grad():
        right = [t.clone() for t in call(model)]
        if not says:
            usage.check(file, model, right)
            return
        with pytest.raises(usage.Unfit, match=says):
            usage.check(file, model, right)
