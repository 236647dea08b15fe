"""Writes the file that a user gets: standalone, with documentation and checks.

All works on foreign text in a sandboxed worker, but for what is the referee's: describe, and
speedup_line, which replaces one line.

Side: both.
Imported by: referee, workers.
"""
