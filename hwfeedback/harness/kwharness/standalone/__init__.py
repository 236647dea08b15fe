"""Runs an exported file in a new interpreter, as its user does.

interpreter has both sides: Running is the referee's, Server the sandboxed worker's. script is what
the new interpreter does; into it nothing of ours is imported before the file was.

Side: both.
Imported by: profile, referee, workers.
"""
