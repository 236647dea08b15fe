"""Processes: the fork server, the sandbox, and what is heard of forbidden calls.

forkserver is the program that all others are forked from, fork_client asks it for workers (messages
is what they say), and worker_start is what a fork becomes. policy says what each role may do;
sandbox, seccomp and linux enforce it; audit hears which calls a worker's filter denies. All of it
is trusted: in a worker it runs before foreign code does, and confines that.

Side: both.
Imported by: build, profile, referee, standalone, timing, torch_compile.
"""
