"""Verification: calibrates honest errors on a task, then holds a candidate to them.

calibrate runs the reference alone; verify asks a candidate, draw after draw (secret_draws), and
compares private copies; verification is what both have in common. asked_of_assumptions finds what a
candidate takes for granted, initial_weights what the construction gives away.

Side: referee.
Imported by: referee, task.
"""
