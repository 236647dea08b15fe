"""What is compiled when it is called, as Triton and torch.compile do, handed to other processes.

A candidate's worker starts no compiler. inductor and called_cache give it what a process that may
compile has made; program_answers replays what compilers said of themselves.

Side: both.
Imported by: attribution, build, clients, referee, workers.
"""
