"""A GPU's sensors, by a library that stands for NVML; test_cuda_driver.py asks the real one."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

from kwharness.machine import nvml, toolchain

LIBRARY = """
#include <cstring>
extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
    *device = (void*)0x1234;
    return strcmp(uuid, "GPU-mine") ? 6 : 0;
}
int nvmlDeviceGetCurrentClocksREASONSReasons(void* d, unsigned long long* bits) {
    *bits = 0x44;
    return d == (void*)0x1234 ? 0 : 1;
}
int nvmlDeviceGetClockInfo(void*, int which, unsigned* mhz) {
    *mhz = 1980;
    return which == 1 ? 0 : 1;
}
struct Process { unsigned pid; unsigned long long bytes; unsigned gpu, compute; };
int nvmlDeviceGetComputeRunningProcessesVERSION(void* d, unsigned* count, Process* found) {
    if (d != (void*)0x1234 || *count < 3) return 7;
    found[0].pid = 4711;
    found[1].pid = 12;
    found[2].pid = 13;
    *count = 3;
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcessesVERSION(void*, unsigned* count, Process* found) {
    found[0].pid = 12;
    found[1].pid = 7;
    *count = 2;
    return 0;
}
int nvmlSystemGetProcessName(unsigned pid, char* name, unsigned) {
    strcpy(name, pid == 7 ? "/usr/lib/xorg/Xo\\trg" : "/usr/bin/python3");
    return pid == 12 ? 6 : 0;
}
int nvmlDeviceGetTemperature(void*, int which, unsigned*) { return 3; }
}
"""


WITH_A_COMPILER = pytest.mark.skipif(
    not toolchain.compiler(), reason="there is no C++ compiler here"
)


def standing_in(folder: pathlib.Path, named: str = "Event", version: str = "_v3") -> str:
    source, library = folder / "nvml.cpp", folder / "nvml.so"
    source.write_text(LIBRARY.replace("REASONS", named).replace("VERSION", version))
    subprocess.run(
        [toolchain.compiler(), "-shared", "-fPIC", str(source), "-o", str(library)], check=True
    )
    return str(library)


@WITH_A_COMPILER
@pytest.mark.parametrize("named", ["Event", "Throttle"])
def test_what_sensors_say(tmp_path: pathlib.Path, named: str) -> None:
    library = standing_in(tmp_path, named)
    sensors = nvml.Sensors("GPU-mine", library)
    seen = sensors.read()
    assert seen == nvml.Reading(0x44, 1980, 0)
    assert sensors.slowed() == seen.slowed
    assert seen.slowed == ["temperature (hardware)"], "a cap on power is none"
    assert nvml.Sensors("GPU-another", library).read() == nvml.Reading()


@WITH_A_COMPILER
@pytest.mark.parametrize("version", ["_v3", "_v2", "_v1"])
def test_who_else_has_a_context(tmp_path: pathlib.Path, version: str) -> None:
    library = standing_in(tmp_path, version=version)
    for pid, line in (
        ("13", b"python\0/x/harness/kwharness/process/forkserver.py\0"),
        ("4711", b"python3\0a.py\0"),
    ):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(line)
    found = nvml.Sensors("GPU-mine", library).strangers(str(tmp_path))
    named = ["7 (Xorg)", "12", "4711 (python3)"]  # 12 is known by its number alone, 13 is ours
    assert found == (named if version != "_v1" else [])
    assert nvml.Sensors("GPU-another", library).strangers(str(tmp_path)) == []


def test_where_there_is_no_nvml() -> None:
    sensors = nvml.Sensors("GPU-mine", "libno-such-thing.so.1")
    seen = sensors.read()
    assert (seen, seen.slowed, sensors.strangers()) == (nvml.Reading(), [], [])
