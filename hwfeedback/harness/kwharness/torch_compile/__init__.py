"""What torch.compile and Triton compile, handed from one process to the next."""
