"""What holds for all tests of the training package."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

# Threads that wait for each other on a busy machine take longer than one alone.
torch.set_num_threads(1)
