"""The bound on errors, and the inputs that test it: functions over tensors."""
