"""What each kernel of a forward does on a GPU: Nsight Compute, or PyTorch's profiler.

Which metrics are asked for is data: metrics.toml, and metrics_sm_NN.toml by compute capability.

Side: referee.
Imported by: referee, workers.
"""
