"""Captures the graphs of reference files.

``capture_files.py HARNESS FILE...`` prints one JSON object a line, as generate.py does. Tensors
have shapes and no values where that suffices, so that large references take no memory.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys

sys.path.insert(0, sys.argv[1])

import torch

from kwharness.base.graph import Graph
from kwharness.task import capture


def graph_of(path: pathlib.Path, device: str) -> tuple[Graph | None, str]:
    """Returns what capture.capture does, of a reference in eval mode."""
    spec = importlib.util.spec_from_file_location("reference", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with torch.device(device):
        spec.loader.exec_module(module)
        model = module.Model(*module.get_init_inputs()).eval()
        return capture.capture(model, module.get_inputs())


if __name__ == "__main__":
    for name in sys.argv[2:]:
        path = pathlib.Path(name)
        graph, note = graph_of(path, "meta")
        if graph is None:
            graph, note = graph_of(path, "cpu")
        line = {"name": path.stem, "graph": graph and graph.to_json(), "note": note}
        print(json.dumps(line, separators=(",", ":")), flush=True)
