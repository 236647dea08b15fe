"""The harness: it builds, verifies, times and profiles candidates.

The folder of this package is on sys.path, with the loader that candidates import (kernelwright.py)
and nothing else of ours. Foreign code runs in sandboxed workers alone; the referee believes nothing
that they say, and holds seeds, expected outputs, clock and verdict. Imports run one way. The
docstring of each package says who may import it, and tests/test_packages.py holds it to that.
"""
