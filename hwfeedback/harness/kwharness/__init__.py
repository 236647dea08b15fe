"""The harness: it builds, verifies, times and profiles candidates. kernelwright.py is not in it."""
