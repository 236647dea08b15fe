"""Runs an exported file in a new interpreter, as its user does."""
