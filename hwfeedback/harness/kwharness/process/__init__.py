"""Processes: the fork server, the sandbox, and what is heard of forbidden calls.

forkserver is the program that all others are forked from, and its client; sandbox is the policy of
each role and its enforcement; audit hears which calls a worker's filter denies. All of it is
trusted: in a worker it runs before foreign code does, and confines that.

Side: both.
Imported by: build, profile, referee, standalone, timing, torch_compile.
"""
