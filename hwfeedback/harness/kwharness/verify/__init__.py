"""Calibrates honest errors on a task, and holds a candidate to them."""
