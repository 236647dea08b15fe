"""How long a forward takes, by a clock outside its process.

window_worker and window_session are the two sides of a timed window, gpu_worker and windows_cuda
those on a GPU. timing is the page: which windows are run, and what follows from them. visit and
rounds run them, device_timing has what differs between devices, clocks the findings, measurement
and known_baselines the figures. ceilings and ceilings_cuda measure what the machine reaches at
most.

Side: both.
Imported by: referee, workers.
"""
