"""How long a forward takes, by a clock outside its process.

window_worker and window_session are the two sides of a timed window, windows_cuda has both for a
GPU; timing decides which windows are run and what follows from them. ceilings and ceilings_cuda
measure what the machine reaches at most.

Side: both.
Imported by: referee, workers.
"""
