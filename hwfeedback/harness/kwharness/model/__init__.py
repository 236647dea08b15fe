"""A model: its construction, weights, state and seeds.

Reference and candidate are constructed alike (construction), are given the same weights (weights),
and what they carry from call to call becomes inputs and outputs (state).

Side: both.
Imported by: clients, export, referee, standalone, timing, verify, workers.
"""
