"""Captures the graphs of a folder of references.

``generate_examples.py HARNESS FOLDER`` prints what generate.py prints of its cases.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

sys.path.insert(0, sys.argv[1])

from kwharness.task import capture

if __name__ == "__main__":
    for path in sorted(pathlib.Path(sys.argv[2]).glob("*.py")):
        space: dict[str, Any] = {"__name__": "reference"}
        exec(compile(path.read_text(), str(path), "exec"), space)
        module = space["Model"](*space["get_init_inputs"]()).eval()
        graph, note = capture.capture(module, space["get_inputs"]())
        line = {"name": path.stem, "graph": graph and graph.to_json(), "note": note}
        print(json.dumps(line), flush=True)
