"""Messages, tensors in shared memory and statistics: what every process of the harness uses."""
