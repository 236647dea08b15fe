"""What torch.compile and Triton compile, handed from one process to the next.

A candidate's worker starts no compiler. inductor and triton_cache give it what a process that may
compile has made; program_answers replays what compilers said of themselves.

Side: both.
Imported by: attribution, build, clients, referee, workers.
"""
