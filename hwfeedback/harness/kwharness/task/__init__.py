"""Whether a file is a task, and what it computes."""
