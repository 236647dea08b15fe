"""What each kernel of a forward does on a GPU."""
