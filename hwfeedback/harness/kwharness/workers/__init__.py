"""The programs of the sandboxed processes, one module a role.

They run foreign code: no referee's module imports them, and the fork server finds them by name.

Side: worker.
Imported by: nobody.
"""
