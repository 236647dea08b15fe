"""Where the harness lies."""

from __future__ import annotations

import os

# The folder that is on sys.path, with the candidates' loader in it.
ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
