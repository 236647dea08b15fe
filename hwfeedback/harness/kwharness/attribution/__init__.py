"""Whose code did the work of a forward: the candidate's, a library's, or PyTorch's.

trace.observe runs in the candidate's process, and explains only; trace.report is the referee's
reading. stack_samples looks from outside at where a stopped process would go on.

Side: both.
Imported by: referee, timing, workers.
"""
