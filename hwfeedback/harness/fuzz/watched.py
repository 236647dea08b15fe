"""The modules that are watched for coverage, by target. No more than these: the rest is slower."""

MODULES: dict[str, tuple[str, ...]] = {
    "artifacts": ("kwharness.build.artifacts", "kernelwright"),
    "build_cache": (
        "kwharness.build.object_cache",
        "kwharness.clients.client",
        "kwharness.clients.errors",
        "kwharness.clients.candidate_client",
    ),
    "building": (
        "kwharness.build.build_requests",
        "kwharness.build.builder_client",
        "kwharness.build.object_cache",
        "kwharness.build.reports",
        "kwharness.build.compilers",
        "kwharness.clients.client",
        "kwharness.clients.errors",
        "kwharness.base.protocol",
    ),
    "candidate_client": (
        "kwharness.clients.client",
        "kwharness.clients.errors",
        "kwharness.clients.candidate_client",
        "kwharness.base.protocol",
        "kwharness.referee.faults",
        "kwharness.attribution.trace",
    ),
    "compiling": ("kwharness.build.compilers", "kwharness.build.sass"),
    "counters": ("kwharness.machine.perf_counters",),
    "forkserver": (
        "kwharness.process.forkserver",
        "kwharness.process.spawn_request",
        "kwharness.base.protocol",
    ),
    "profiling": ("kwharness.profile.ncu", "kwharness.profile.profile_forward"),
    "protocol": ("kwharness.base.protocol",),
    "reference_client": (
        "kwharness.clients.client",
        "kwharness.clients.errors",
        "kwharness.clients.reference_client",
        "kwharness.base.protocol",
        "kwharness.task.inspect_task",
        "kwharness.base.tensors",
    ),
    "session": (
        "kwharness.timing.window_base",
        "kwharness.timing.window_session",
        "kwharness.base.protocol",
    ),
    "source": ("kwharness.build.source",),
    "tensors": ("kwharness.base.tensors",),
    "trees": ("kwharness.base.trees",),
}
