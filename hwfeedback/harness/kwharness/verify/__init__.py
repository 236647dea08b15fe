"""Verification: calibrates honest errors on a task, then holds a candidate to them.

calibrate runs the reference alone; verify draws under secret seeds (secret_draws) and compares
private copies. assumptions finds what a candidate takes for granted, initial_weights what the
construction gives away.

Side: referee.
Imported by: referee, task.
"""
