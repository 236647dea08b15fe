from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from kwharness.base.graph import Graph, GraphBatch, GraphInput, GraphTensor
from kwharness.base.records import ProtocolError
from kwharness.task.capture import MAX_CONSTANT, capture
from kwharness.task.needed_bytes import needed_bytes


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 4)])
        self.scale = torch.tensor(2.0)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor, n: int) -> dict[str, Any]:
        y = F.relu(self.layers[0](x), inplace=True)
        y += self.seen * n
        return {"soft": torch.softmax(y * self.scale, -1), "best": (y.max(1)[0], None)}


def test_the_graph_names_everything_that_a_plan_needs() -> None:
    graph, note = capture(Net().eval(), [torch.randn(5, 6), 3])
    assert note == "" and graph is not None
    assert [(i.name, i.path) for i in graph.inputs] == [("x", [0]), ("n", [1])]
    assert graph.inputs[1].value == 3
    states = {p.state for p in graph.parameters}
    assert states == {"layers.0.weight", "layers.0.bias", "seen"}
    assert graph.constants[0].data == [2.0]
    ops = [n.op for n in graph.nodes]
    assert "aten.linear.default" in ops and "aten.softmax.int" in ops
    assert not any(op.split(".")[1].endswith("_") for op in ops)
    soft = next(n for n in graph.nodes if n.op == "aten.softmax.int")
    assert soft.outputs[0] == GraphTensor([5, 4], "float32", [4, 1], batch=True)
    keys = [k for k, _ in graph.outputs["dict"]]
    assert keys == ["soft", "best"]
    best = graph.outputs["dict"][1][1]["tuple"]
    assert best[0]["value"]["item"] == 0 and best[1] == {"value": None}


def test_the_same_model_gives_the_same_graph() -> None:
    a, b = (capture(Net().eval(), [torch.randn(5, 6), 3])[0] for _ in range(2))
    assert a is not None and b is not None
    assert json.dumps(a.to_json()) == json.dumps(b.to_json())


def test_none_is_written_where_it_says_something() -> None:
    class Optional(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
            return x.softmax(-1) if mask is None else x * mask

    graph, note = capture(Optional(), [torch.randn(2, 3), None])
    assert graph is not None, note
    told = graph.to_json()
    tensor = {"shape": [2, 3], "dtype": "float32", "strides": [3, 1]}
    assert told["inputs"] == [
        {"name": "x", "path": [0], **tensor},
        {"name": "mask", "path": [1], "value": None},
    ]
    assert told["nodes"][0]["outputs"] == [tensor]
    assert (told["v"], told["batch"]) == (1, None)
    assert Graph.from_json(json.loads(json.dumps(told))) == graph


class Flattened(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1).cumsum(0)


class Rows(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + y, 1).view(x.shape[0], -1)


def test_the_batch_is_found_where_it_only_leads() -> None:
    graph, _ = capture(Rows(), [torch.randn(8, 5), torch.randn(1, 5)])
    assert graph is not None and graph.batch == GraphBatch(8, ["x"])
    graph, _ = capture(Flattened(), [torch.randn(8, 5)])
    assert graph is not None and graph.batch is None


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(MAX_CONSTANT + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers_are_captured_once(
    layer: type[nn.RNNBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[nn.Module] = []
    export = torch.export.export

    def counted(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        exported.append(model)
        return export(model, *args, **kwargs)

    monkeypatch.setattr(torch.export, "export", counted)
    graph, note = capture(layer(4, 4, batch_first=True), [torch.randn(8, 3, 4)])
    assert graph is not None, note
    assert (len(exported), graph.batch) == (1, None)


@pytest.mark.parametrize(
    ("model", "inputs", "said"),
    [
        (Branch(), [torch.randn(4)], "torch.export could not capture the model"),
        (Large(), [torch.randn(MAX_CONSTANT + 1)], "not in the state_dict"),
        (Counter(), [torch.randn(4)], "changes its buffers"),
        (nn.ReLU(), [object()], ""),
    ],
)
def test_what_cannot_be_captured_is_one_sentence(
    model: nn.Module, inputs: list[Any], said: str
) -> None:
    graph, note = capture(model, inputs)
    assert graph is None
    assert said in note and note and "\n" not in note


def test_numbers_that_json_lacks_are_spelled() -> None:
    class Fill(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(x > 0, float("-inf"))

    graph, _ = capture(Fill(), [torch.randn(4)])
    assert graph is not None
    assert graph.nodes[-1].args[2] == {"float": "-inf"}


def test_it_starts_no_process_and_no_thread() -> None:
    def there() -> tuple[set[str], set[str]]:
        with open(f"/proc/self/task/{os.getpid()}/children") as f:
            return set(os.listdir("/proc/self/task")), set(f.read().split())

    threads, children = there()
    capture(Rows(), [torch.randn(8, 5), torch.randn(1, 5)])
    assert there()[0] <= threads and there()[1] <= children


@pytest.mark.parametrize(
    ("forward", "n_inputs", "needed"),
    [
        (lambda x: torch.softmax(x, -1), 1, 2 * 120),
        (lambda x: F.gelu(x * 2.0) + 1.0, 1, 2 * 120),
        (lambda x: x.sum(-1), 1, 120 + 20),
        (lambda x, y: (torch.maximum(x, y), (x - y).abs().mean()), 2, 3 * 120 + 4),
        (lambda x: F.layer_norm(x, (6,)), 1, 2 * 120),
        (lambda x: torch.relu(x[:, :2]), 1, 0),
        (lambda x: torch.relu(x)[:, :2], 1, 0),
        (lambda x: torch.tril(x) + 1.0, 1, 0),
        (lambda x: x @ x.T, 1, 0),
        (lambda x: torch.max(x, -1)[0], 1, 0),  # its indices are not given
        (lambda x, y: torch.relu(x), 2, 0),  # it ignores one
        (lambda x: (x, torch.relu(x)), 1, 0),  # one is given back
        (lambda x: torch.relu(x).view(-1), 1, 0),
        (lambda x: x[torch.tensor([0, 2])] * 2.0, 1, 0),
    ],
)  # fmt: skip
def test_what_is_certainly_needed(forward: Any, n_inputs: int, needed: int) -> None:
    class Own(nn.Module):
        def forward(self, *inputs: torch.Tensor) -> Any:
            return forward(*inputs)

    graph, note = capture(Own(), [torch.randn(5, 6) for _ in range(n_inputs)])
    assert graph is not None, note
    assert needed_bytes(graph) == needed


def test_not_all_that_is_expanded_is_needed() -> None:
    graph, _ = capture(nn.ReLU(), [torch.randn(1, 6).expand(5, 6)])
    assert needed_bytes(graph) == 0


def test_what_is_no_graph_needs_nothing() -> None:
    deep: Any = {"ref": "relu"}
    for _ in range(100_000):
        deep = [deep]
    graph, _ = capture(nn.ReLU(), [torch.randn(5, 6)])
    assert graph is not None and needed_bytes(graph) == 240
    odd = replace(graph.nodes[0], op="relu")  # without a namespace
    valued = GraphInput("x", [0], value=1.0)
    changes: list[dict[str, Any]] = [{"nodes": [odd]}, {"outputs": deep}, {"inputs": [valued]}]
    for other in (None, *(replace(graph, **c) for c in changes)):
        assert needed_bytes(other) == 0


@pytest.mark.parametrize(
    "odd", [{}, [], {"nodes": 3}, {"nodes": [{}]}, {"inputs": [{"name": "x", "shape": [-1]}]}]
)
def test_what_is_no_graph_is_not_read(odd: Any) -> None:
    graph, _ = capture(nn.ReLU(), [torch.randn(5, 6)])
    assert graph is not None
    with pytest.raises(ProtocolError):
        Graph.from_json(graph.to_json() | odd if odd and isinstance(odd, dict) else odd)
