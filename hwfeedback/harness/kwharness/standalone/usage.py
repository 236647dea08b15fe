"""Treats an exported file as its users do, in the interpreter of script.py: each way must give
what the plain call gave. Which one does not is the reason why the file is not certified.
"""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

# How near one way comes to another, of the largest number in an output, and how many integers may
# differ: whether it computes the right thing is judged elsewhere, and atomics add in any order.
NEAR, DIFFERING = 1e-2, 1e-2
TOLD = 300  # characters of what a way says
UNFIT = "Unfit: "  # begins what an interpreter's last line says of it
TRIED = (
    "used as its users do, it gives the same: constructed without a load, by keyword, in eval(), "
    "deep-copied, moved, with a state that was saved, in two threads; it refuses gradients"
)
UNTRIED = "not used in all the ways of its users: the task is large, and each calls it once more"


class Unfit(Exception):
    """One way to use it fails. The message is a clause."""


@dataclass(frozen=True)
class File:
    """``construct``: returns a new model; by keyword, where asked for. ``load``: gives it the
    weights. ``call``: returns a model's outputs; by keyword, where asked for. ``inputs``: of a
    call. ``names``: whether constructor and forward have names for what they are given.
    """

    construct: Callable[..., torch.nn.Module]
    load: Callable[[torch.nn.Module], None]
    call: Callable[..., list[torch.Tensor]]
    inputs: Sequence[torch.Tensor]
    names: tuple[bool, bool]
    takes: bool  # it has a way of its own to take the reference's state
    device: str


def check(file: File, model: torch.nn.Module, right: Sequence[torch.Tensor]) -> None:
    """Raises Unfit. ``model`` is constructed, has its weights, and was called."""
    ways: dict[str, Callable[[], list[torch.Tensor]]] = {
        "constructed by keyword": lambda: file.call(_new(file, keywords=file.names[0])),
        "called by keyword": lambda: file.call(model, keywords=file.names[1]),
        "in eval()": lambda: file.call(model.eval()),
        "deep-copied": lambda: file.call(_copied(file, model)),
        "moved": lambda: file.call(_moved(_new(file), file.device)),
        "given the state that it was saved with": lambda: file.call(_saved(file, model)),
        "in two threads": lambda: _threads(file),
    }
    for how, way in ways.items():
        try:
            got = way()
        except Exception as e:
            raise Unfit(f"{how}, it raises {type(e).__name__}: {str(e)[:TOLD]}") from e
        same = len(got) == len(right) and all(map(_near, got, right))
        if not same:
            raise Unfit(f"{how}, it computes something else")
    _refuses_gradients(file, model)


def _new(file: File, *, keywords: bool = False) -> torch.nn.Module:
    model = file.construct(keywords=keywords)
    file.load(model)
    return model


def _copied(file: File, model: torch.nn.Module) -> torch.nn.Module:
    try:
        return copy.deepcopy(model)
    except (TypeError, RuntimeError):  # what it has captured in a call cannot be copied
        return copy.deepcopy(_new(file))


def _moved(model: torch.nn.Module, device: str) -> torch.nn.Module:
    """Has its weights in other memory, as whoever moves it to another device does."""
    if device == "cpu":
        return model._apply(torch.clone)  # type: ignore[no-any-return]
    return model.to("cpu").to(device)


def _saved(file: File, model: torch.nn.Module) -> torch.nn.Module:
    if file.takes:  # the reference's state, and not its own
        return _new(file)
    at = io.BytesIO()
    torch.save(model.state_dict(), at)
    at.seek(0)
    new = _new(file)
    for t in new.state_dict().values():
        t.zero_()
    new.load_state_dict(torch.load(at, weights_only=True))
    return new


def _threads(file: File) -> list[torch.Tensor]:
    """Two models at once: an output needs to last only until the next call of the same."""
    models = [_new(file) for _ in range(2)]
    for model in models:  # a graph is captured while nobody else is at work
        file.call(model)
    found: list[list[torch.Tensor]] = [[], []]
    failed: list[Exception] = []

    def run(i: int) -> None:
        try:
            with torch.no_grad():  # which is a thread's own
                found[i] = file.call(models[i])
        except Exception as e:
            failed.append(e)

    both = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for t in both:
        t.start()
    for t in both:
        t.join()
    if failed:
        raise failed[0]
    if not all(map(_near, *found)):
        raise RuntimeError("the two differ")
    return found[0]


def _refuses_gradients(file: File, model: torch.nn.Module) -> None:
    floating = [t for t in file.inputs if t.is_floating_point()]
    if not floating and not any(p.requires_grad for p in model.parameters()):
        return
    try:
        with torch.enable_grad():
            file.call(model, gradients=True)
    except RuntimeError as e:
        if "torch.no_grad()" in str(e):
            return
        raise Unfit(f"asked for gradients, it raises {type(e).__name__}: {str(e)[:TOLD]}") from e
    except Exception as e:
        raise Unfit(f"asked for gradients, it raises {type(e).__name__}: {str(e)[:TOLD]}") from e
    raise Unfit("asked for gradients, it gives an output without them and says nothing")


def _near(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.numel():
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return bool((a != b).double().mean() <= DIFFERING)
    finite = b.isfinite()
    if not torch.equal(a.isfinite(), finite):
        return False
    a, b = a[finite], b[finite]
    if not b.numel():
        return True
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    return bool((a - b).abs().max() <= NEAR * b.abs().max())
