"""Runs candidates of the cases in models.py and compares them with float64.

``check.py HARNESS FOLDER``: candidates are FOLDER/NAME.TAG.py. Prints one JSON object a line,
``{"file", "error"}``, where an empty error means right. Those in CUDA are run on the CPU.
"""

from __future__ import annotations

import copy
import json
import pathlib
import sys
import traceback
from typing import Any

sys.path.insert(0, sys.argv[1])

import emulate
import models
import torch
from torch.utils import _pytree as pytree

from kwharness.build import headers

# Where in an input what is planted.
PLANTED = {0.1: float("nan"), 0.37: float("inf"), 0.71: -float("inf")}


def double(tree: Any) -> Any:
    return pytree.tree_map(
        lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, tree
    )


def load(path: pathlib.Path) -> type[torch.nn.Module]:
    space: dict[str, Any] = {"__name__": "candidate"}
    text = headers.in_python(path.read_text())  # nothing else tells a compiler where they lie
    exec(compile(emulate.on_cpu(text), str(path), "exec"), space)
    return space["ModelNew"]


def compare(module: torch.nn.Module, new: torch.nn.Module, inputs: list[Any]) -> str:
    """Returns what is wrong with the new module's outputs, or an empty text."""
    kept = [t.clone() for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    got_tree = new(*inputs)
    after = [t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    if not all(torch.equal(a, b) or a.isnan().any() for a, b in zip(kept, after, strict=True)):
        return "an input was changed"
    eager_tree = module(*copy.deepcopy(inputs))
    exact = pytree.tree_leaves(copy.deepcopy(module).double()(*double(copy.deepcopy(inputs))))
    if type(got_tree) is not type(eager_tree) and not isinstance(eager_tree, tuple):
        return f"returns a {type(got_tree).__name__}, not a {type(eager_tree).__name__}"
    got, eager = pytree.tree_leaves(got_tree), pytree.tree_leaves(eager_tree)
    if len(got) != len(eager):
        return f"{len(got)} outputs, not {len(eager)}"
    for i, (g, e, x) in enumerate(zip(got, eager, exact, strict=True)):
        if g.shape != e.shape or g.dtype != e.dtype:
            return f"output {i} is {g.dtype} {tuple(g.shape)}, not {e.dtype} {tuple(e.shape)}"
        if not g.is_floating_point():
            if not torch.equal(g, e):
                return f"output {i} differs in {int((g != e).sum())} of {g.numel()} elements"
            continue
        bad = ~torch.isfinite(e)
        same = (g == e) | (g.isnan() & e.isnan())
        if not same[bad].all() or not torch.isfinite(g[~bad]).all():
            return f"output {i} has NaN or infinity elsewhere than eager"
        if bad.all():
            continue
        error = (g.double() - x)[~bad].abs()
        theirs = (e.double() - x)[~bad].abs()
        eps = torch.finfo(g.dtype).eps
        scale = x[~bad].abs()
        bound = 3 * theirs.max() + eps * (4 * scale + 0.5 * scale.mean())
        if (error > bound).any():
            at = int((error - bound).argmax())
            return (
                f"output {i} is off by {error[at]:.3g} at {scale[at]:.3g}, "
                f"beyond {bound[at]:.3g} (eager's largest is {theirs.max():.3g})"
            )
    return ""


def compare_batch(module: torch.nn.Module, new: torch.nn.Module, inputs: list[Any]) -> str:
    """Compares on a shorter leading dimension, where the candidate takes one at all."""
    size = next(t for t in pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)).shape[0]

    def shorten(t: Any) -> Any:
        if isinstance(t, torch.Tensor) and t.dim() and t.shape[0] == size:
            return t[: size // 2].clone()
        return t

    fewer = pytree.tree_map(shorten, inputs)
    try:
        new(*fewer)
    except ValueError as e:
        return "" if "this kernel was made for" in str(e) else str(e)
    wrong = compare(module, new, fewer)
    return f"with half the batch: {wrong}" if wrong else ""


def check(path: pathlib.Path, cases: dict[str, models.Case]) -> str:
    name = path.name.split(".")[0]
    module, inputs = cases[name]
    new = load(path)().eval()
    new.load_state_dict(module.state_dict(), strict=True)
    with torch.no_grad():
        wrong = compare(module, new, inputs) or compare_batch(module, new, inputs)
        if wrong or not name.startswith("unary_"):
            return wrong
        flat = inputs[0].clone().reshape(-1)
        for at, value in PLANTED.items():
            flat[int(at * flat.numel())] = value
        # Eager's vectorised and scalar code disagree on some of these, so each
        # element is asked for alone.
        got = new(flat.reshape(inputs[0].shape)).reshape(-1)
        if got.numel() != flat.numel() or name == "unary_views":
            return ""
        for at in PLANTED:
            i = int(at * flat.numel())
            one = module(flat[i].reshape(1, 1)).reshape(-1)[0]
            if not (got[i] == one or (got[i].isnan() and one.isnan()) or abs(got[i] - one) < 1e-5):
                return f"f({flat[i].item()}) is {got[i].item()}, not {one.item()}"
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    every = models.cases()
    for file in sorted(pathlib.Path(sys.argv[2]).glob("*.py")):
        try:
            error = check(file, every)
        except Exception:
            error = traceback.format_exc()[-3000:]
        print(json.dumps({"file": file.name, "error": error}), flush=True)
