"""What a new interpreter does with an exported file: see interpreter.py."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any


def imported(path: str) -> Any:
    """Imports a file as ``import candidate`` would."""
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    return module


PROFILED = 12  # forwards


def profiled(forward: Any, times: int = PROFILED, most: int = 100) -> dict[str, Any]:
    """What PyTorch's profiler sees of forwards that find nothing in the L2: kernels and copies, and
    the time from where the first starts until the last has ended. Medians, in milliseconds. The
    ``most`` kinds that take longest are listed; of the others' kernels the sums are told.
    """
    import torch
    from torch.autograd.profiler import profile  # torch.profiler's imports a compiler first

    size = 2 * torch.cuda.get_device_properties(0).L2_cache_size // 4
    block = torch.ones(max(size, 1), device="cuda")

    def mark() -> None:
        torch.cuda._sleep(1000)

    for _ in range(3):
        forward()
    torch.cuda.synchronize()
    with profile(use_cpu=False, use_device="cuda", use_kineto=True) as seen:
        for _ in range(times):
            block.sum()
            mark()
            forward()
            mark()
        torch.cuda.synchronize()
    path = os.path.join(os.environ["TMPDIR"], "trace.json")
    seen.export_chrome_trace(path)
    with open(path, encoding="utf-8") as f:
        return medians(json.load(f)["traceEvents"], most)


def medians(events: list[dict[str, Any]], most: int) -> dict[str, Any]:
    """Returns what ``profiled`` does, from the events of a trace."""
    from statistics import median

    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    parts: list[list[Any]] = []
    for e in sorted(work, key=lambda e: e["ts"]):
        if "spin_kernel" in e["name"]:
            parts.append([])
        elif parts:
            parts[-1].append(e)
    forwards = [part for part in parts[::2] if part]
    if not forwards:
        return {"launches": [], "span_ms": 0.0, "more": 0, "more_ms": 0.0}
    spans = [max(e["ts"] + e["dur"] for e in f) - min(e["ts"] for e in f) for f in forwards]
    took: dict[Any, list[float]] = {}
    count: dict[Any, int] = {}
    for part in forwards:
        of_this: dict[Any, list[float]] = {}
        for e in part:
            a = e["args"]
            key = e["name"], tuple(a.get("grid") or ()), tuple(a.get("block") or ())
            of_this.setdefault(key, []).append(e["dur"])
        for key, durations in of_this.items():
            took.setdefault(key, []).append(sum(durations))
            count[key] = max(count.get(key, 0), len(durations))
    launches = [
        {"name": n[:300], "grid": g, "block": b, "count": count[n, g, b], "ms": 1e-3 * median(us)}
        for (n, g, b), us in took.items()
    ]
    launches.sort(key=lambda e: -e["ms"])
    others = [e for e in launches[most:] if e["grid"]]  # a copy has none
    return {
        "launches": launches[:most],
        "span_ms": 1e-3 * median(spans),
        "more": sum(e["count"] for e in others),
        "more_ms": sum(e["ms"] for e in others),
    }


def awaited() -> tuple[str, list[int]]:
    """Returns which request to do, and its descriptors, once its standard input has them."""
    import socket

    importlib.import_module("torch")  # which takes longer than all else
    told = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=0)
    name, fds, _, _ = socket.recv_fds(told, 64, 2)
    told.detach()
    if not name:
        sys.exit("nobody wants to know any more")
    return name.decode(), fds


class Case:
    """A file that was imported, and the call that is asked of it."""

    def __init__(self, module: Any, request: dict[str, Any], values: list[Any]) -> None:
        """``values``: what the model is constructed with, its weights, and the inputs."""
        from kwharness.base.carried import Carried

        a, b, _ = request["counts"]
        self.module, self.request = module, request
        self.use, self.device = request["use"], request["device"]
        self.init, state, self.inputs = values[:a], values[a : a + b], values[a + b :]
        self.weights = dict(zip(request["names"], state, strict=True))
        self.carried = Carried.from_json(request["carried"])

    def model(self) -> Any:
        """Constructs the file's model, and loads the weights. Raises ValueError where it has other
        weights than the reference under the same seed.
        """
        rebuilds = getattr(self.module, "_kernelwright_reference", None)
        if self.use["rebuilt"] and rebuilds is not None:
            rebuilt = self.construct(of=rebuilds()).state_dict()
            _compare(rebuilt, self.use["rebuilt"], "its Model's")
        model = self.construct()
        _compare(model.state_dict(), self.use["constructed"], "its")
        self.load(model)
        return model

    def construct(self, *, keywords: bool = False, of: Any = None) -> Any:
        """Constructs a model as the reference is, ``of`` the file's class or of another."""
        import torch

        from kwharness.base import trees
        from kwharness.base.breaks import Break
        from kwharness.model import construction

        known = [Break.from_json(b) for b in self.request["breaks"]]
        breaks = construction.Breaks(known) if known else None
        args = trees.build(self.request["init"], self.init)
        named = dict(zip(self.use["constructor"], args, strict=True)) if keywords else {}
        with construction.under(self.request["seed"], breaks) as drawn, torch.device(self.device):
            kind = of or self.module.ModelNew
            made = kind(**named) if keywords else kind(*args)
            drawn.finish(made)
        made = made.to(self.device)
        return made.eval() if self.request["eval"] else made

    def load(self, made: Any) -> None:
        """Gives a model the weights."""
        import torch

        with torch.no_grad():
            if self.request["own"]:
                mine = made.state_dict()
                for n, value in self.weights.items():
                    mine[n].copy_(value)
            elif self.use["takes"]:
                getattr(made, self.use["takes"])(self.weights)
            elif self.weights or made.state_dict():
                made.load_state_dict(self.weights)

    def run(self, made: Any, given: Any, *, keywords: bool = False) -> Any:
        """Calls a model."""
        from kwharness.base import trees

        args = trees.build(self.request["inputs"], given)
        return (
            made(**dict(zip(self.use["forward"], args, strict=True))) if keywords else made(*args)
        )

    def carrying(self, made: Any) -> Any:
        """Returns what puts state into a model, None where none is carried."""
        from kwharness.model import state as states

        others = [n for n in self.weights if n not in self.carried.names]
        return states.Carrier(made, self.carried, others=others) if self.carried else None

    def called(self, made: Any, *, keywords: bool = False, gradients: bool = False) -> list[Any]:
        """What a forward gives, in order, with what it carries to the next one."""
        own = self.carrying(made)
        given = self.inputs if own is None else own.prepare(self.inputs)
        if gradients:
            given = [t.detach().clone() for t in given]
            given = [t.requires_grad_() if t.is_floating_point() else t for t in given]
        return self.listed(self.run(made, given, keywords=keywords), own, given)

    def listed(self, out: Any, own: Any, given: Any) -> list[Any]:
        """Returns the outputs in the reference's order, and what is carried."""
        from kwharness.base import trees

        tree, found = trees.flatten(out, numbers=True)
        if not trees.same_shape(trees.renumbered(tree), self.request["outputs"]):
            raise TypeError("forward returns another structure than the reference")
        found = [found[i] for i in trees.ordered_like(tree, self.request["outputs"])]
        return found if own is None else found + own.collect(given)

    def check_ways(self, model: Any, found: list[Any]) -> None:
        """Uses the file in the other ways in which its users may. ``found``: what is right."""
        import torch

        from kwharness.standalone import usage

        names = bool(self.use["constructor"]), bool(self.use["forward"])
        takes = bool(self.use["takes"])
        file = usage.File(
            self.construct, self.load, self.called, self.inputs, names, takes, self.device
        )
        with torch.no_grad():
            usage.check(file, model, found)


def _compare(state: Any, digests: dict[str, str], whose: str) -> None:
    from kwharness.model import construction

    for n, digest in digests.items():
        if n not in state or construction.digest_of(state[n]) != digest:
            raise ValueError(f"constructed under the same seed, {whose} {n} is not the reference's")


def _received(shared: str, fd: int, size: int) -> Any:
    """``shared``: the kind of device whose memory it is, "" where it is the machine's."""
    if shared:
        from kwharness.machine import device

        return device.of(shared).received(fd, size)
    from kwharness.base import tensors

    return tensors.received(fd, size, writable=True)


def _views(block: Any, layout: list[Any]) -> list[Any]:
    """Returns the tensors that lie in a block, by a layout as JSON."""
    from kwharness.base.tensors import Entry

    return list(block.views([Entry.from_json(e) for e in layout]))


def _give(found: list[Any], request: dict[str, Any], fd: int) -> None:
    """Writes outputs where they are wanted, and that they are there."""
    layout, size = request["wanted"]
    back = _received(request["shared"], fd, size + 1)
    for t, view in zip(found, _views(back, layout), strict=True):
        if t.shape != view.shape or t.dtype != view.dtype:
            raise TypeError(f"forward returns {t.dtype} {tuple(t.shape)}")
        view.copy_(t)
    back.bytes()[size] = 1


def main(folder: str, name: str, profile: str, given: str) -> None:
    """``name``: of a request, or "" for one that comes later. ``profile``: where to write what a
    profiler sees, if that is asked for. ``given``: the request's descriptors.
    """
    name, fds = (name, json.loads(given)) if name else awaited()
    with open(os.path.join(folder, f"{name}.json"), encoding="utf-8") as f:
        request = json.load(f)
    module = imported(os.path.join(folder, "candidate.py"))

    # Ours comes after: the file must do without.
    import torch

    sys.path.insert(0, os.path.join(folder, "tools"))
    from kwharness.base import trees

    torch.set_num_threads(request["threads"])
    # As it was verified and timed: see Gpu.hold_to_float32.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False

    layout, size = request["given"]
    block = _received(request["shared"], fds[0], size)
    device = request["device"]
    case = Case(module, request, [v.to(device, copy=True) for v in _views(block, layout)])
    model = case.model()
    with torch.no_grad():
        carrier = case.carrying(model)
        taken = case.inputs if carrier is None else carrier.prepare(case.inputs)
        found = case.listed(case.run(model, taken), carrier, taken)
    if request["wanted"]:
        _give(found, request, fds[1])
    torch.get_device_module(device).synchronize()
    if request["use"]["ways"] and request["wanted"]:
        case.check_ways(model, [t.clone() for t in found])
    if profile:
        given_inputs = trees.build(request["inputs"], taken)
        seen: dict[str, Any] = {"launches": [], "span_ms": 0.0, "more": 0, "more_ms": 0.0}
        try:
            with torch.no_grad():
                seen = profiled(lambda: model(*given_inputs))
        except Exception:
            if carrier is None:  # else it goes on by itself, and a state may come to its end
                raise
        with open(profile, "w", encoding="utf-8") as f:
            json.dump(seen, f)


if __name__ == "__main__":
    main(*sys.argv[1:])
