"""How long a forward takes, by a clock outside its process.

windows and windows_cuda have both sides of a timed window; timing decides which windows are run and
what follows from them. ceilings and ceilings_cuda measure what the machine reaches at most.

Side: both.
Imported by: referee, workers.
"""
