"""The machine: its devices, compilers, counters, sensors and memory.

device is the interface to the memory that tensors travel in, on a CPU or a GPU; cuda_driver is as
much of CUDA as measuring needs, without PyTorch. toolchain finds compilers, health reads what says
that a GPU does not work, perf_counters and nvml read counters and sensors.

Side: both.
Imported by: build, clients, process, profile, referee, standalone, task, timing, torch_compile,
verify, workers.
"""
