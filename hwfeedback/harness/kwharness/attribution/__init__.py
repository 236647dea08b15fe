"""Whose code did the work of a forward: the candidate's, a library's, or PyTorch's."""
