"""Writes the file that a user gets: standalone, with documentation and checks.

All but describe, which is the referee's, works on foreign text in a sandboxed worker.

Side: both.
Imported by: referee, workers.
"""
