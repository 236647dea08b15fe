"""Modules of transformers, as tasks of their own: read off the installed package's text.

The package is not imported. A class is taken with what it uses of its own file, without decorators,
annotations and texts, and has to run on torch alone. Its config is an object with the few fields
that the text reads, whose values the table below has. A class that reads another field, or uses
another part of the package, is left out, counted by reason. Such a module is never composed with
operators.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import alike
import cost
from composer import NoTask, fitted, silly_result
from crawling import outcomes
from rules import NoFit
from step import seeded

# What may be imported beside torch.
PLAIN = {"math", "functools", "itertools", "collections", "dataclasses", "copy"}
# A config's fields and a constructor's parameters: their values, "WIDTH" being drawn.
WIDTH = set(
    """
    hidden_size d_model n_embd embed_dim dim hidden_dim embedding_size in_features n_state
    embedding_dim in_channels num_channels channels decoder_hidden_size text_hidden_size
    """.split()  # noqa: SIM905
)
VALUES: dict[str, Any] = {
    "intermediate_size": "4 * WIDTH",
    "ffn_dim": "4 * WIDTH",
    "encoder_ffn_dim": "4 * WIDTH",
    "decoder_ffn_dim": "4 * WIDTH",
    "dim_feedforward": "4 * WIDTH",
    "d_ff": "4 * WIDTH",
    "n_inner": "4 * WIDTH",
    "mlp_dim": "4 * WIDTH",
    "mlp_ratio": 4,
    "num_attention_heads": 8,
    "num_heads": 8,
    "n_head": 8,
    "n_heads": 8,
    "encoder_attention_heads": 8,
    "hidden_act": "ACT",
    "hidden_activation": "ACT",
    "activation_function": "ACT",
    "activation": "ACT",
    "dense_act_fn": "ACT",
    "feed_forward_act": "ACT",
    "mlp_bias": False,
    "use_bias": True,
    "bias": True,
    "qkv_bias": True,
    "attention_bias": False,
    "chunk_size_feed_forward": 0,
    "layer_scale_init_value": 0.1,
    "layerscale_value": 0.1,
    "pretraining_tp": 1,
    "groups": 1,
}
ZERO = re.compile(r"(dropout|drop_?path|_prob|_pdrop|drop_rate|drop)($|_)|dropout_rate$")
EPSILON = re.compile(r"(^|_)(eps|epsilon)$")
ACTIVATIONS = {"gelu": "nn.GELU()", "silu": "nn.SiLU()", "relu": "nn.ReLU()"}
# What a class's name says that is too large for one task, or no computation.
WHOLE = re.compile(r"(Model|PreTrained\w*|For[A-Z]\w*|Encoder|Decoder|Output\w*|Config)$")
SHAPES = {3: ("B", "T", "C"), 2: ("B", "C"), 4: ("B", "C", "H", "H")}
SMALL = {"B": 2, "T": 8, "H": 6, "C": 32}
LENGTHS, SIDES = (32, 64, 128, 256), (14, 28, 56)
WIDTHS = (128, 256, 384, 512, 768, 1024)
MOST_LINES = 120  # of a class with what it uses


def version() -> str:
    """Returns the version of transformers that is installed, "" where none is."""
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return ""


def files() -> list[Path]:
    """Returns the package's files that hold models."""
    try:
        spec = importlib.util.find_spec("transformers")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin:
        return []
    return sorted(Path(spec.origin).parent.glob("models/*/modeling_*.py"))


KEPT = {"staticmethod", "property", "classmethod"}  # decorators that say how a method is called


class Strip(ast.NodeTransformer):
    """Takes out decorators, annotations and texts."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = [
            d for d in node.decorator_list if isinstance(d, ast.Name) and d.id in KEPT
        ]
        node.returns = None
        a = node.args
        for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]:
            if arg is not None:
                arg.annotation = None
        return self._body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = []
        return self._body(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def _body(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        node.body = [
            n
            for n in node.body
            if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
        ] or [ast.Pass()]
        return ast.fix_missing_locations(node)


class Source:
    """One file of the package."""

    def __init__(self, path: Path) -> None:
        self.path = path
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.defined: dict[str, ast.stmt] = {}
        self.imported: dict[str, str] = {}  # name to the line that brings it, "" of the package
        for n in tree.body:
            if isinstance(n, ast.ClassDef | ast.FunctionDef):
                self.defined[n.name] = n
            elif isinstance(n, ast.Assign) and len(n.targets) == 1:
                if isinstance(n.targets[0], ast.Name):
                    self.defined[n.targets[0].id] = n
            elif isinstance(n, ast.Import | ast.ImportFrom):
                self._imports(n)

    def _imports(self, n: ast.Import | ast.ImportFrom) -> None:
        for a in n.names:
            name = a.asname or a.name.split(".")[0]
            root = (n.module or "" if isinstance(n, ast.ImportFrom) else a.name).split(".")[0]
            own = isinstance(n, ast.ImportFrom) and n.level > 0
            fits = not own and (root == "torch" or root in PLAIN)
            alias = f" as {a.asname}" if a.asname else ""
            line = f"from {n.module} import" if isinstance(n, ast.ImportFrom) else "import"
            self.imported[name] = f"{line} {a.name}{alias}" if fits else ""

    def classes(self) -> Iterator[ast.ClassDef]:
        for n in self.defined.values():
            if not isinstance(n, ast.ClassDef) or WHOLE.search(n.name):
                continue
            if any(ast.unparse(b) in ("nn.Module", "torch.nn.Module") for b in n.bases):
                yield n


def _used(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _fields(nodes: list[ast.stmt]) -> set[str]:
    """Returns the fields of a config that are read."""
    found = set()
    for root in nodes:
        for n in ast.walk(root):
            if isinstance(n, ast.Attribute) and ast.unparse(n.value) in ("config", "self.config"):
                found.add(n.attr)
            asks = isinstance(n, ast.Call) and ast.unparse(n.func) in ("getattr", "hasattr")
            if asks and ast.unparse(n.args[0]) in ("config", "self.config"):  # type: ignore[attr-defined]
                raise NoFit("asks whether its config has a field")
    return found


def value_of(name: str) -> str:
    """Returns what a field or parameter is, as text. Raises NoFit."""
    if name in WIDTH:
        return "width"
    if name in VALUES:
        value = VALUES[name]
        if isinstance(value, str):
            return {"ACT": "activation"}.get(value, value.replace("WIDTH", "width"))
        return repr(value)
    if ZERO.search(name):
        return "0.0"
    if EPSILON.search(name):
        return "1e-5"
    raise NoFit("needs a value for which there is no rule")


def read(source: Source, cls: ast.ClassDef) -> dict[str, Any]:
    """Returns an entry of the catalogue for a class. Raises NoFit."""
    _one_tensor(cls)
    parts: dict[str, ast.stmt] = {}
    lines: set[str] = set()
    waiting = [cls.name]
    while waiting:
        name = waiting.pop()
        if name in parts:
            continue
        parts[name] = Strip().visit(ast.parse(ast.unparse(source.defined[name])).body[0])
        for used in sorted(_used(parts[name])):
            if used in source.defined:
                waiting.append(used)
            elif source.imported.get(used) == "" and used != "ACT2FN":
                raise NoFit("uses other parts of transformers")
            elif source.imported.get(used):
                lines.add(source.imported[used])
    order = [n for n in source.defined if n in parts]
    text = "\n\n\n".join(ast.unparse(parts[n]) for n in order)
    if text.count("\n") > MOST_LINES:
        raise NoFit("is too long for one task")
    fields = {f: value_of(f) for f in sorted(_fields([parts[n] for n in order]))}
    return {
        "path": f"transformers.{source.path.parent.name}.{cls.name}",
        "file": f"models/{source.path.parent.name}/{source.path.name}",
        "class": cls.name,
        "text": _activated(text),
        "imports": sorted(
            lines - {"import torch", "import torch.nn as nn", "from torch import nn"}
        ),
        "fields": fields,
        "given": _given(parts[cls.name]),
    }


def _one_tensor(cls: ast.ClassDef) -> None:
    forward = [n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    if not forward:
        raise NoFit("has no forward of its own")
    a = forward[0].args
    if len(a.posonlyargs) + len(a.args) - 1 - len(a.defaults) != 1 or None in a.kw_defaults:
        raise NoFit("takes more than one tensor")


def _given(cls: ast.stmt) -> list[str]:
    """Returns what the constructor has to be given, as text."""
    assert isinstance(cls, ast.ClassDef)
    for n in cls.body:
        if isinstance(n, ast.FunctionDef) and n.name == "__init__":
            needed = n.args.args[1 : len(n.args.args) - len(n.args.defaults)]
            if None in n.args.kw_defaults:
                raise NoFit("needs parameters by name")
            return [a.arg if a.arg == "config" else value_of(a.arg) for a in needed]
    return []


def _activated(text: str) -> str:
    """Writes an activation that is looked up by its name as the module that it is."""
    return re.sub(r"ACT2FN\[[^\[\]]*\]", "ACTIVATION", text)


def render(entry: dict[str, Any], rank: int, sizes: dict[str, int], activation: str) -> str:
    """Writes a module as a reference file."""
    text = entry["text"].replace("ACTIVATION", ACTIVATIONS[activation])
    named = {"B": "batch_size", "T": "seq_length", "H": "side", "C": "width"}
    shape = [named[d] for d in SHAPES[rank]]
    fields = {k: repr(activation) if v == "activation" else v for k, v in entry["fields"].items()}
    given = ", ".join(repr(activation) if g == "activation" else g for g in entry["given"])
    constants = [f"{named[d]} = {sizes[d]}" for d in dict.fromkeys(SHAPES[rank])]
    imports = ["import torch", "from torch import nn", *entry["imports"]]
    config = []
    if "config" in entry["given"]:
        imports.insert(0, "from types import SimpleNamespace")
        config = [f"config = SimpleNamespace({', '.join(f'{k}={v}' for k, v in fields.items())})"]
    head = f"# {entry['class']} of transformers {entry['version']}, {entry['file']} (Apache-2.0)."
    model = "\n".join(
        [
            "class Model(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            f"        self.module = {entry['class']}({given})",
            "",
            "    def forward(self, x):",
            "        return self.module(x)" + ("[0]" if entry.get("first") else ""),
        ]
    )
    inputs = f"def get_inputs():\n    return [torch.randn({', '.join(shape)})]"
    init = "def get_init_inputs():\n    return []"
    top = "\n".join([head, *imports, "", *constants, *config])
    return "\n\n\n".join([top, text, model, inputs, init]) + "\n"


def make(source: str) -> tuple[Any, list[torch.Tensor]]:
    """Runs a file that render wrote, and returns its model and inputs."""
    space: dict[str, Any] = {"__name__": "task"}
    exec(compile(source, "task.py", "exec"), space)
    return space["Model"](*space["get_init_inputs"]()).eval(), space["get_inputs"]()


def probe(entry: dict[str, Any]) -> dict[str, Any]:
    """Runs a module small, on one rank after the other. Returns it with what works, or a reason."""
    if "reason" in entry:
        return entry
    worst = "fits no tensor"
    for rank in SHAPES:
        whole = entry | {"rank": rank, "first": False}
        try:
            a, b, c, x = _results(whole)
            if isinstance(a, tuple | list):
                whole["first"] = True
                a, b, c, x = _results(whole)
        except Exception:
            continue
        fault = silly_result(a, b, c, x)
        if not fault:
            return whole
        worst = fault
    return entry | {"reason": worst}


def _results(entry: dict[str, Any]) -> tuple[Any, Any, Any, torch.Tensor]:
    """Runs a module twice on an input and once on another one, and returns the input too."""
    seeded(1)
    model, inputs = make(render(entry, entry["rank"], SMALL, "gelu"))
    x = inputs[0]
    with torch.no_grad():
        return model(x), model(x), model(torch.randn_like(x)), x


def listed() -> Iterator[dict[str, Any]]:
    """Yields every class, read or with a reason why it is not; one of those that are the same."""
    seen = set()
    installed = version()
    for path in files():
        try:
            source = Source(path)
        except (SyntaxError, UnicodeDecodeError):
            continue
        for cls in source.classes():
            entry: dict[str, Any] = {"path": f"transformers.{path.parent.name}.{cls.name}"}
            try:
                entry = read(source, cls) | {"version": installed}
            except NoFit as e:
                yield entry | {"reason": str(e)}
                continue
            tree = _tree(entry)  # models copy each other's modules under other names
            if tree in seen:
                yield {"path": entry["path"], "reason": "is the same as another one"}
                continue
            seen.add(tree)
            yield entry


def _tree(entry: dict[str, Any]) -> str:
    """Returns what a module computes, as the comparison of tasks reads it."""
    source = render(entry | {"first": False}, 3, SMALL, "gelu")
    try:
        return repr(alike.canonical(source).tree)
    except alike.Unreadable:
        return source


def compose(
    rng: random.Random,
    entries: list[dict[str, Any]],
    low_ms: float,
    high_ms: float,
    machine: cost.Machine,
) -> dict[str, Any]:
    """Returns a task that is one module, with sizes for the window. Raises NoTask."""
    why = "no module fits"
    for _ in range(20):
        entry = rng.choice(entries)
        activation = rng.choice(sorted(ACTIVATIONS))
        sizes = {
            "B": 8,
            "T": rng.choice(LENGTHS),
            "H": rng.choice(SIDES),
            "C": rng.choice(WIDTHS),
        }

        written = partial(_written, entry, sizes, activation)
        try:
            batch, ms = fitted(rng, 8, partial(_estimate, written, machine), low_ms, high_ms)
        except NoFit as e:
            why = str(e)
            continue
        return {
            "source": written(batch),
            "operators": [entry["path"]],
            "estimate_ms": ms,
            "dtype": "float32",
        }
    raise NoTask(why)


def _written(entry: dict[str, Any], sizes: dict[str, int], activation: str, batch: int) -> str:
    return render(entry, entry["rank"], sizes | {"B": batch}, activation)


def _estimate(written: Callable[[int], str], machine: cost.Machine, batch: int) -> float:
    """Returns about how long a file's forward takes with a batch, from the meta device."""
    try:
        with torch.device("meta"):
            model, inputs = make(written(batch))
        with torch.no_grad(), cost.Counting() as counted:
            model(*inputs)
    except Exception as e:
        raise NoFit("does not run on the meta device") from e
    return counted.ms(machine)


def crawl(told: Callable[[int, int], None], journal: str = "") -> dict[str, Any]:
    """Returns what the catalogue holds of transformers; nothing where it is not installed. It goes
    on where it was, as ``catalogue.crawl`` does.
    """
    every = list(listed())
    found = outcomes(every, probe, told, journal, len(os.sched_getaffinity(0)))
    return {
        "transformers": version() if every else "",
        "modules": [e for e in found if "reason" not in e],
        "modules_left_out": dict(
            Counter(e["reason"] for e in found if "reason" in e).most_common()
        ),
        "modules_tried": len(every),
    }
