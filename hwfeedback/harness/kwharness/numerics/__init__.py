"""What is right, as functions over tensors.

correctness is the bound on errors, norms how large they are; rounding and decisions estimate what
float32 may do to a result; families and their parts make inputs on which a wrong candidate shows.
Nothing here talks to a process.

Side: both.
Imported by: clients, export, referee, task, verify, workers.
"""
