"""Writes the file that a user gets: standalone, with documentation and checks."""
