"""Whether a file is a task, and what it computes.

inspect_task is the referee's side. capture (the graph) and operator_counts run in the reference's
worker.

Side: both.
Imported by: referee, workers.
"""
