"""Modules of transformers: of a package with a few made-up ones, and of the real one."""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import alike
import borrowed
import cost
import serve
from composer import NoTask

MACHINE = cost.Machine(bytes_s=1e10, operations_s=1e11, call_ms=0.005)
LLAMA = '''
import math
from typing import Optional
import torch
from torch import nn
from ...activations import ACT2FN
from ...integrations import use_kernel_forward_from_hub
from .configuration_llama import LlamaConfig

SCALE = 2.0


@use_kernel_forward_from_hub("RMSNorm")
class LlamaRMSNorm(nn.Module):
    """A text."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon: float = eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states


class LlamaMLP(nn.Module):
    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x: torch.Tensor, scale: Optional[float] = None):
        return scaled(self.down(self.act_fn(self.gate(x)))), None


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE / math.sqrt(2)


class LlamaAttention(nn.Module):
    def __init__(self, config):
        super().__init__()

    def forward(self, x, mask):
        return x


class LlamaGate(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n = config.num_experts

    def forward(self, x):
        return x * self.n


class LlamaRotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def forward(self, x):
        return use_kernel_forward_from_hub(x)


class LlamaIdentity(nn.Module):
    def forward(self, x):
        return x


class LlamaModel(nn.Module):
    def forward(self, x):
        return x.sin()
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package transformers whose import fails: it is read alone."""
    for name in ("llama", "mistral"):
        (tmp_path / "transformers" / "models" / name).mkdir(parents=True)
        text = LLAMA.replace("Llama", "Mistral").replace("1e-6", "1e-05")
        (tmp_path / "transformers" / "models" / name / f"modeling_{name}.py").write_text(
            LLAMA if name == "llama" else text
        )
    (tmp_path / "transformers" / "models" / "mistral" / "modeling_bad.py").write_text("class (")
    (tmp_path / "transformers" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    importlib.invalidate_caches()
    yield
    importlib.invalidate_caches()


def crawled() -> dict[str, dict[str, object]]:
    return {e["path"]: borrowed.probe(e) for e in borrowed.listed()}


def test_what_is_taken_and_why_the_rest_is_not(package: None) -> None:
    found = crawled()
    assert {p: e.get("reason", "") for p, e in found.items()} == {
        "transformers.llama.LlamaRMSNorm": "",
        "transformers.llama.LlamaMLP": "",
        "transformers.llama.LlamaAttention": "takes more than one tensor",
        "transformers.llama.LlamaGate": "needs a value for which there is no rule",
        "transformers.llama.LlamaRotary": "uses other parts of transformers",
        "transformers.llama.LlamaIdentity": "changes nothing",
        "transformers.mistral.MistralRMSNorm": "is the same as another one",
        "transformers.mistral.MistralMLP": "is the same as another one",
        "transformers.mistral.MistralAttention": "takes more than one tensor",
        "transformers.mistral.MistralGate": "needs a value for which there is no rule",
        "transformers.mistral.MistralRotary": "uses other parts of transformers",
        "transformers.mistral.MistralIdentity": "is the same as another one",
    }
    assert found["transformers.llama.LlamaMLP"]["first"] is True


def test_a_module_is_a_task_that_stands_alone(package: None) -> None:
    modules = [e for e in crawled().values() if "reason" not in e]
    seen = set()
    for seed in range(3):
        drawn = borrowed.compose(random.Random(seed), modules, 0.5, 50, MACHINE)
        assert drawn == borrowed.compose(random.Random(seed), modules, 0.5, 50, MACHINE)
        source = drawn["source"]
        assert "ACT2FN" not in source and "from ..." not in source and "@" not in source
        assert "(Apache-2.0)." in source.splitlines()[0]
        serve.run_small(source)
        alike.canonical(source)
        seen.add(drawn["operators"][0])
    assert len(seen) == 2, seen
    service = serve.Service()
    service.modules = modules
    asked = {"seed": 1, "index": 2, "operators": 1, "low_ms": 0.5, "high_ms": 50, "module": True}
    asked["machine"] = {"bytes_s": 1e10, "operations_s": 1e11, "call_ms": 0.005}
    asked |= {"without": [], "one_of": [], "only": [], "ranks": [], "dtypes": {"float32": 1}}
    answer = service.compose(asked)
    assert answer["operators"][0] in {e["path"] for e in modules} and "reason" not in answer
    assert answer == service.compose(asked)
    assert service.compose(asked | {"low_ms": 1e-7, "high_ms": 1e-6})["reason"].startswith("no ")
    with pytest.raises(NoTask, match="no batch takes as long"):
        borrowed.compose(random.Random(1), modules, 1e-7, 1e-6, MACHINE)


def test_near_copies_are_alike(package: None) -> None:
    """A module's text is read as any file's: RMSNorm written by hand is like Llama's."""
    norm = [e for e in crawled().values() if e["path"] == "transformers.llama.LlamaRMSNorm"]
    source = borrowed.compose(random.Random(3), norm, 0.5, 50, MACHINE)["source"]
    by_hand = (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self, n):\n"
        "        super().__init__()\n        self.g = nn.Parameter(torch.ones(n))\n\n    def forward(self, y):\n"
        "        return y * torch.rsqrt((y ** 2).mean(dim=-1, keepdim=True) + 1e-6) * self.g\n"
    )
    found, _ = alike.nearest(alike.canonical(source), [("x", alike.canonical(by_hand))], 0.9)
    assert found > 0.9


@pytest.mark.skipif(
    not borrowed.files(), reason="transformers is not installed: PYTHONPATH=.tools/training"
)
def test_the_real_package() -> None:
    torch.set_num_threads(1)
    wanted = {"llama", "gpt2", "bert", "t5", "convnext", "falcon", "qwen2"}
    files = [p for p in borrowed.files() if p.parent.name in wanted]
    entries = []
    for path in files:
        source = borrowed.Source(path)
        for cls in source.classes():
            try:
                entries.append(borrowed.probe(borrowed.read(source, cls) | {"version": "1"}))
            except borrowed.NoFit:
                continue
    works = [e for e in entries if "reason" not in e]
    assert {"LlamaMLP", "LlamaRMSNorm"} <= {e["class"] for e in works}
    for seed in range(4):
        serve.run_small(borrowed.compose(random.Random(seed), works, 0.1, 50, MACHINE)["source"])
