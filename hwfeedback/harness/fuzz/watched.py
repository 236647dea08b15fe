"""The modules that are watched for coverage, by target. No more than these: the rest is slower."""

MODULES: dict[str, tuple[str, ...]] = {
    "artifacts": ("artifacts", "kernelwright"),
    "build_cache": ("building", "clients"),
    "building": ("building", "compiling", "clients", "protocol"),
    "candidate_client": ("clients", "protocol", "evaluation", "trace"),
    "compiling": ("compiling", "sass"),
    "counters": ("counters",),
    "forkserver": ("forkserver", "protocol"),
    "profiling": ("ncu", "profiling"),
    "protocol": ("protocol",),
    "reference_client": ("clients", "protocol", "inspection", "tensors"),
    "session": ("windows", "protocol"),
    "source": ("source",),
    "tensors": ("tensors",),
    "trees": ("trees",),
}
