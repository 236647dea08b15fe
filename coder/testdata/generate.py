"""Captures the graphs of the cases in models.py.

``generate.py HARNESS`` prints one JSON object a line, ``{"name", "graph", "note"}``. The fixtures
of the Go tests are some of these lines: ``generate.py HARNESS NAME... > graphs.jsonl``.
"""

from __future__ import annotations

import json
import sys

sys.path.insert(0, sys.argv[1])

import models

from kwharness.task import capture

if __name__ == "__main__":
    for name, (module, inputs) in models.cases().items():
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        graph, note = capture.capture(module, inputs)
        line = {"name": name, "graph": graph and graph.to_json(), "note": note}
        print(json.dumps(line, separators=(",", ":")), flush=True)
