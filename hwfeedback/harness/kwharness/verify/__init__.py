"""Verification: calibrates honest errors on a task, then holds a candidate to them.

It draws under secret seeds and compares private copies. assumptions finds what a candidate takes
for granted, initial_weights what the construction gives away.

Side: referee.
Imported by: referee, task.
"""
