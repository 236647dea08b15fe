"""The referee's side of its workers: requests, deadlines, blocks of memory."""
