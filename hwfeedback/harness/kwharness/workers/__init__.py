"""The programs of the sandboxed processes."""
