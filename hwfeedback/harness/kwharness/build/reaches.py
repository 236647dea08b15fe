"""What of torch an object reaches, past what it may."""

from __future__ import annotations

import re
import subprocess

from kwharness.build.form import NATIVE

# What a kernel has no use for: PyTorch's kernels past the dispatcher, where no trace sees them, the
# dispatcher itself and what it tells of calls, the interpreter that it runs in, and whatever finds
# or changes code at run time.
# On a GPU they are told from helpers by the tensors that they take; the shim for compiled models
# calls them, too.
_PAST_DISPATCH = re.compile(
    r"_ZNK?2at(6native|3cpu(?!\d+(is|L1|L2)_)|19compositeexplicit|17compositeimplicit"
    r"|4cuda\d+\w*NS_6TensorE)"
    r"|aoti_torch_(cpu|cuda)_\w+"
)
# Who excludes dispatch keys hides nothing from the profiler: torch::empty_like does it, too.
_UNSEEN = re.compile(
    r"_ZN2at4_ops\w+10redispatchE"
    r"|_ZNK?3c1010Dispatcher\d"
    r"|_ZN3c104impl(20TorchDispatchModeTLS|19PythonDispatcherTLS|\d+tls_set_dispatch_key_)"
    r"|_ZN2at\d+([gs]et_record_function_tls_|(en|dis)able(RecordFunction|Callback)E"
    r"|reenableCallbackE|removeCallbackE|clear(|Global|ThreadLocal)CallbacksE"
    r"|releaseRecordAllFunctionsE)"
    r"|_ZN5torch(8autograd8profiler|8profiler4impl)"
)
_ELSEWHERE = re.compile(
    r"(dlopen|dlmopen|dlsym|dlvsym|dl_iterate_phdr|mprotect|pkey_mprotect|ptrace|syscall|fork|vfork"
    r"|execv[pe]*|execl[pe]*|posix_spawnp?|system|popen|process_vm_(read|write)v|sigaction|signal"
    r"|clock_settime|settimeofday|timer_create)(@.*)?"
)
_PYTHON = re.compile(r"_?Py[A-Z_]\w*(@.*)?")
MAX_REACHES = 10


def reaches(built: str, kind: str) -> list[str]:
    """Returns the symbols that an object takes from elsewhere and that a kernel has no use for.

    Evidence, and no more: who wants to can find code without naming it. An object that cannot be
    read says nothing.
    """
    command = ["nm", "-D", "--undefined-only", "--format=posix", built]
    try:
        done = subprocess.run(command, capture_output=True, timeout=30, text=True, errors="replace")
    except (OSError, subprocess.SubprocessError):
        return []
    names = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    bad = [
        n
        for n in names
        if _PAST_DISPATCH.match(n)
        or _UNSEEN.match(n)
        or _ELSEWHERE.fullmatch(n)
        or (kind == NATIVE and _PYTHON.fullmatch(n))
    ]
    return sorted(bad)[:MAX_REACHES]
