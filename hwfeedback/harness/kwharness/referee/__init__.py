"""Answers Go's requests: holds seeds, expected outputs, clock and verdict."""
