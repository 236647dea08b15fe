"""Processes: the fork server, the sandbox, and what is heard of a worker's forbidden calls."""
