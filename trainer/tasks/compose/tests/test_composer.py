"""The catalogue and the composer, on a few operators of the installed torch."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import catalogue
import composer
import cost
import crawling
import serve
from step import Step

PATHS = [
    "torch.nn.Linear",
    "torch.nn.ReLU",
    "torch.nn.functional.gelu",
    "torch.softmax",
    "torch.nn.LayerNorm",
    "torch.amax",
    "torch.mul",
    "torch.nn.Conv2d",
    "torch.nn.MaxPool2d",
    "torch.add",
    "torch.nn.MSELoss",
    "torch.cumsum",
    "torch.nn.Dropout",
    "torch.argmax",
    "torch.nn.Identity",
    "torch.log",
    "torch.matmul",
]


@pytest.fixture(scope="module")
def operators() -> dict[str, dict[str, Any]]:
    torch.set_num_threads(1)
    listed = {e["path"]: e for e in catalogue.candidates()}
    return {p: catalogue.probe(dict(listed[p])) for p in PATHS}


def test_what_an_operator_is(operators: dict[str, dict[str, Any]]) -> None:
    assert operators["torch.nn.Linear"]["family"] == "product"
    assert (
        operators["torch.softmax"]["family"] == operators["torch.nn.LayerNorm"]["family"] == "row"
    )
    assert operators["torch.nn.ReLU"]["family"] == operators["torch.mul"]["family"] == "pointwise"
    assert operators["torch.nn.Conv2d"]["ranks"] == [4]
    assert operators["torch.log"]["domain"] == "positive"
    assert operators["torch.nn.functional.gelu"]["primitives"] == ["gelu"]
    assert operators["torch.nn.Dropout"]["reason"] in ("is random", "changes nothing")
    assert operators["torch.argmax"]["reason"] == "its result is not floating"
    assert operators["torch.nn.Identity"]["reason"] == "holds other modules, or does nothing"


def test_an_operator_that_ends_its_process_costs_itself() -> None:
    def probe(entry: dict[str, Any]) -> dict[str, Any]:
        if entry["path"] == "bad":
            os._exit(3)
        return entry

    entries = [{"path": p} for p in ("a", "bad", "b", "bad", "c")]
    found = crawling.outcomes(entries, probe, lambda n, of: None)
    assert [e["path"] for e in found] == ["a", "bad", "b", "bad", "c"]
    assert [e["path"] for e in found if "reason" in e] == ["bad", "bad"]


CRAWLED = PATHS[1:4] + PATHS[5:7] + PATHS[12:15]


def crawled(listed: list[dict[str, Any]], path: str, killed_at: str, width: int) -> str:
    """Crawls a few operators in processes that are killed at one of them; "" where they were."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        top = os.getpid()

        def probe(entry: dict[str, Any]) -> dict[str, Any]:
            if entry["path"] == killed_at:
                os.kill(top, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            return catalogue.probe(entry)

        found = crawling.outcomes(listed, probe, lambda n, of: None, path, width)
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        text = answers.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.parametrize("width", [1, 2])
def test_a_crawl_that_is_killed_ends_in_the_same_bytes(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch, operators: dict[str, Any]
) -> None:
    assert operators  # what probing imports is imported once, not in each process
    listed = [e for e in catalogue.candidates() if e["path"] in CRAWLED]
    whole = crawled(listed, "", "", 1)
    order = [e["path"] for e in json.loads(whole)]
    assert sorted(order) == sorted(CRAWLED)
    monkeypatch.setattr(crawling, "CHUNK", 3)
    journal = tmp_path / "journal"
    for at in (0, 2, 3, 7):
        said = crawled(listed, str(journal), order[at], width)
        if width == 1:  # of two processes the other one may be further
            assert said == "" and outcomes_in(journal) == list(range(at))
        with journal.open("ab") as kept:  # a line that was cut off
            kept.write(b'{"i": 3, "outc')
    assert crawled(listed, str(journal), "", width) == whole
    assert sorted(set(outcomes_in(journal))) == list(range(len(order)))


def outcomes_in(journal: Path) -> list[int]:
    return [json.loads(n)["i"] for n in journal.read_text().splitlines() if n[-1:] == "}"]


def wish(operators: int, **other: Any) -> composer.Wish:
    given = {
        "low_ms": 0.05,
        "high_ms": 1.0,
        "machine": cost.Machine(20e9, 200e9, 0.005),
        "without": frozenset(),
        "one_of": frozenset(),
        "only": frozenset(),
        "ranks": composer.RANKS,
        "dtypes": {"float32": 1.0},
    }
    return composer.Wish(operators=operators, **{**given, **other})


def composed(
    operators: dict[str, dict[str, Any]], index: int, wanted: composer.Wish
) -> tuple[composer.Drawn, str]:
    serve.SERVICE.composer = composer.Composer([e for e in operators.values() if "reason" not in e])
    rng = random.Random(index)
    drawn = serve.SERVICE.composer.compose(rng, wanted)
    return drawn, serve.written(drawn, rng)["source"]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_composed_task_runs_and_is_drawn_again(
    operators: dict[str, dict[str, Any]], n: int
) -> None:
    drawn, source = composed(operators, n, wish(n))
    assert composed(operators, n, wish(n))[1] == source
    assert len(drawn.steps) == n and len(set(drawn.kinds())) == n
    assert 0.05 <= drawn.estimate_ms <= 1
    space: dict[str, Any] = {}
    exec(source, space)
    with torch.no_grad():
        out = space["Model"](*space["get_init_inputs"]()).eval()(*space["get_inputs"]())
    assert tuple(out.shape) == drawn.outputs[-1]
    assert source.startswith("import torch\n") and '"""' in source


def test_a_task_of_few_bits_runs_in_them(operators: dict[str, dict[str, Any]]) -> None:
    for i in range(4):
        drawn, source = composed(operators, i, wish(2, dtypes={"bfloat16": 1.0}))
        space: dict[str, Any] = {}
        exec(source, space)
        inputs = space["get_inputs"]()
        assert inputs[0].dtype == torch.bfloat16
        with torch.no_grad():
            out = space["Model"](*space["get_init_inputs"]()).eval()(*inputs)
        assert out.dtype == torch.bfloat16 and tuple(out.shape) == drawn.outputs[-1]


def test_kinds_that_are_held_out(operators: dict[str, dict[str, Any]]) -> None:
    for i in range(4):
        drawn, _ = composed(operators, i, wish(2, without=frozenset({"gelu", "linear"})))
        assert not {"gelu", "linear"} & set(drawn.kinds())
        drawn, _ = composed(operators, i, wish(2, one_of=frozenset({"gelu"})))
        assert "gelu" in drawn.kinds()


def test_kinds_that_are_wished_alone(operators: dict[str, dict[str, Any]]) -> None:
    few = frozenset({"gelu", "mul"})
    for i in range(4):
        drawn, _ = composed(operators, i, wish(2, only=few, ranks=(3,)))
        assert set(drawn.kinds()) <= few and len(drawn.shape) == 3
        drawn, _ = composed(operators, i, wish(2, only=few, one_of=frozenset({"relu", "linear"})))
        assert "relu" in drawn.kinds() and set(drawn.kinds()) <= few | {"relu"}


def test_what_is_silly_is_refused() -> None:
    shape = (4, 64)
    relu = Step("torch.relu", "relu", "function")
    clamp = Step("torch.clamp", "clamp", "function", {"min": 5.0})
    rng = random.Random(1)
    with pytest.raises(composer.NoFit, match="changes nothing"):
        composer.check([relu, relu], shape, "any", rng)
    with pytest.raises(composer.NoFit, match="one value"):
        composer.check([clamp], shape, "any", rng)
    with pytest.raises(composer.NoFit, match="not finite"):
        composer.check([Step("torch.log", "log", "function")], shape, "any", rng)
    composer.check([relu], shape, "any", rng)


def test_an_estimate_is_by_what_was_measured(operators: dict[str, dict[str, Any]]) -> None:
    heard: list[tuple[int, int]] = []
    known = [e for e in operators.values() if "reason" not in e]
    rates = composer.rates(known, lambda n, of: heard.append((n, of)))
    assert heard[-1][0] == heard[-1][1] == len({e["kind"] for e in known})
    assert {"gelu", "native_layer_norm", "mm"} <= {k.split()[0] for k in rates}
    assert all(v > 0 for v in rates.values())
    x = torch.empty(1000, 1000, device="meta")
    with cost.Counting() as counted:
        x.softmax(0)
        x.softmax(1)
    assert [c.key for c in counted.calls] == ["_softmax across", "_softmax"]
    slow = cost.Machine(1e12, 1e12, 0.0, {"_softmax across": 8.0, "_softmax": 2.0}, 4)
    assert counted.ms(slow) == pytest.approx((8 + 2) * 1e6 * 1e-6 / 4)
    assert cost.Machine(1, 1, 0, {"var": 7.0}).rate("var across") == 7.0
    back = torch.nn.ConvTranspose2d(2, 2, 3, device="meta")
    with cost.Counting() as counted, torch.no_grad():
        back(torch.empty(1, 2, 8, 8, device="meta"))
    assert "convolution back" in [c.key for c in counted.calls]


def test_an_estimate_counts_bytes_and_operations() -> None:
    x = torch.empty(1000, 1000, device="meta")
    machine = cost.Machine(1e9, 1e9, 0.0)
    with cost.Counting() as counted:
        torch.neg(x)
    assert counted.ms(machine) == pytest.approx(8e6 / (cost.BANDWIDTH_SHARE * 1e9) * 1e3)
    with cost.Counting() as counted:
        torch.mm(x, x)
    assert counted.ms(machine) == pytest.approx(2e9 / (cost.PRODUCT_SHARE * 1e9) * 1e3)
