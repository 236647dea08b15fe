"""The machine: its devices, compilers, counters, sensors and memory.

device is the interface to a kind of device, and the CPU; gpu is the other kind; cuda_driver is as
much of CUDA as measuring needs, without PyTorch. toolchain finds compilers, health reads what says
that a GPU does not work, perf_counters and nvml read counters and sensors.

Side: both.
Imported by: build, clients, export, process, profile, referee, standalone, task, timing,
torch_compile, verify, workers.
"""
