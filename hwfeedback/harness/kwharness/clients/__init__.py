"""The referee's side of its workers: requests, deadlines, blocks of memory.

What comes back is foreign and checked here. workshop has built what a candidate asks for while it
runs; warm_processes starts processes before they are needed.

Side: referee.
Imported by: build, profile, referee, standalone, task, timing, verify.
"""
