"""The hardware and its software: CUDA, compilers, sensors, counters, memory."""
