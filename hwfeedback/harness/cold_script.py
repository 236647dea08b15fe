"""What a new interpreter does with an exported file; see cold.py. Not imported by anything."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any


def imported(path: str) -> Any:
    """Imports a file as ``import kernel`` would."""
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    spec.loader.exec_module(module)
    return module


def main(folder: str) -> None:
    with open(os.path.join(folder, "request.json"), encoding="utf-8") as f:
        request = json.load(f)
    module = imported(os.path.join(folder, "kernel.py"))

    # Ours comes after: the file must do without.
    import torch

    sys.path.insert(0, os.path.join(folder, "tools"))
    import tensors
    import trees

    torch.set_num_threads(request["threads"])
    given, back = (
        tensors.received(fd, request[name][1], writable=True)
        for fd, name in zip(request["fds"], ("given", "wanted"), strict=True)
    )
    device = request["device"]
    values = [v.to(device, copy=True) for v in given.views(request["given"][0])]
    a, b, _ = request["counts"]
    init, state, inputs = values[:a], values[a : a + b], values[a + b :]

    torch.manual_seed(0)
    with torch.device(device):
        model = module.ModelNew(*trees.build(request["init"], init)).to(device)
    weights = dict(zip(request["names"], state, strict=True))
    own = getattr(model, "load_reference_state", None)
    with torch.no_grad():
        if callable(own):
            own(weights)
        elif weights or model.state_dict():
            model.load_state_dict(weights)
        if request["eval"]:
            model.eval()
        out = model(*trees.build(request["inputs"], inputs))
    tree, found = trees.flatten(out, numbers=True)
    if not trees.same_shape(trees.renumbered(tree), request["outputs"]):
        raise TypeError("forward returns another structure than the reference")
    found = [found[i] for i in trees.ordered_like(tree, request["outputs"])]
    for t, view in zip(found, back.views(request["wanted"][0]), strict=True):
        if t.shape != view.shape or t.dtype != view.dtype:
            raise TypeError(f"forward returns {t.dtype} {tuple(t.shape)}")
        view.copy_(t)


if __name__ == "__main__":
    main(sys.argv[1])
