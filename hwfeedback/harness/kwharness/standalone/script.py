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
    from statistics import median

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
        events = json.load(f)["traceEvents"]
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
    from kwharness.base import tensors, trees
    from kwharness.model import construction
    from kwharness.model import state as states

    torch.set_num_threads(request["threads"])
    # As it was verified and timed: see Gpu.hold_to_float32.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False

    def received(fd: int, size: int) -> Any:
        if request["shared"] == "cuda":
            from kwharness.machine import device

            return device.gpu().received(fd, size)
        return tensors.received(fd, size, writable=True)

    layout, size = request["given"]
    block = received(fds[0], size)
    device = request["device"]
    values = [v.to(device, copy=True) for v in block.views(layout)]
    a, b, _ = request["counts"]
    init, state, inputs = values[:a], values[a : a + b], values[a + b :]

    weights = dict(zip(request["names"], state, strict=True))
    carried = states.Carried.from_json(request["carried"])
    use = request["use"]

    def construct(*, keywords: bool = False, of: Any = None) -> Any:
        breaks = construction.Breaks(request["breaks"]) if request["breaks"] else None
        args = trees.build(request["init"], init)
        named = dict(zip(use["constructor"], args, strict=True)) if keywords else {}
        with construction.under(request["seed"], breaks) as drawn, torch.device(device):
            made = (of or module.ModelNew)(**named) if keywords else (of or module.ModelNew)(*args)
            drawn.finish(made)
        made = made.to(device)
        return made.eval() if request["eval"] else made

    def load(made: Any) -> None:
        with torch.no_grad():
            if request["own"]:
                mine = made.state_dict()
                for n, value in weights.items():
                    mine[n].copy_(value)
            elif use["takes"]:
                getattr(made, use["takes"])(weights)
            elif weights or made.state_dict():
                made.load_state_dict(weights)

    def run(made: Any, given: Any, *, keywords: bool = False) -> Any:
        args = trees.build(request["inputs"], given)
        return made(**dict(zip(use["forward"], args, strict=True))) if keywords else made(*args)

    def carrying(made: Any) -> Any:
        others = [n for n in weights if n not in carried.names]
        return states.Carrier(made, carried, others=others) if carried else None

    def called(made: Any, *, keywords: bool = False, gradients: bool = False) -> list[Any]:
        """What a forward gives, in order, with what it carries to the next one."""
        own = carrying(made)
        given = inputs if own is None else own.prepare(inputs)
        if gradients:
            given = [t.detach().clone() for t in given]
            given = [t.requires_grad_() if t.is_floating_point() else t for t in given]
        return listed(run(made, given, keywords=keywords), own, given)

    def listed(out: Any, own: Any, given: Any) -> list[Any]:
        tree, found = trees.flatten(out, numbers=True)
        if not trees.same_shape(trees.renumbered(tree), request["outputs"]):
            raise TypeError("forward returns another structure than the reference")
        found = [found[i] for i in trees.ordered_like(tree, request["outputs"])]
        return found if own is None else found + own.collect(given)

    def compare(state: Any, digests: dict[str, str], whose: str) -> None:
        for n, digest in digests.items():
            if n not in state or construction.digest_of(state[n]) != digest:
                raise ValueError(
                    f"constructed under the same seed, {whose} {n} is not the reference's"
                )

    rebuilds = getattr(module, "_kernelwright_reference", None)
    if use["rebuilt"] and rebuilds is not None:
        compare(construct(of=rebuilds()).state_dict(), use["rebuilt"], "its Model's")
    model = construct()
    compare(model.state_dict(), use["constructed"], "its")
    load(model)
    with torch.no_grad():
        carrier = carrying(model)
        taken = inputs if carrier is None else carrier.prepare(inputs)
        found = listed(run(model, taken), carrier, taken)
    if request["wanted"]:
        layout, size = request["wanted"]
        back = received(fds[1], size + 1)
        for t, view in zip(found, back.views(layout), strict=True):
            if t.shape != view.shape or t.dtype != view.dtype:
                raise TypeError(f"forward returns {t.dtype} {tuple(t.shape)}")
            view.copy_(t)
        back.bytes()[size] = 1
    if device == "cuda":
        torch.cuda.synchronize()
    if use["ways"] and request["wanted"]:
        from kwharness.standalone import usage

        found = [t.clone() for t in found]
        names = bool(use["constructor"]), bool(use["forward"])
        file = usage.File(construct, load, called, inputs, names, bool(use["takes"]), device)
        with torch.no_grad():
            usage.check(file, model, found)
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
