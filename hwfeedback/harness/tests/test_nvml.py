"""A GPU's sensors, by a library that stands for NVML; test_cuda.py asks the real one."""

from __future__ import annotations

import pathlib
import subprocess

import pytest

import nvml
import toolchain

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
int nvmlDeviceGetTemperature(void*, int which, unsigned*) { return 3; }
}
"""


@pytest.mark.skipif(not toolchain.compiler(), reason="there is no C++ compiler here")
@pytest.mark.parametrize("named", ["Event", "Throttle"])
def test_what_sensors_say(tmp_path: pathlib.Path, named: str) -> None:
    source, library = tmp_path / "nvml.cpp", tmp_path / "nvml.so"
    source.write_text(LIBRARY.replace("REASONS", named))
    subprocess.run(
        [toolchain.compiler(), "-shared", "-fPIC", str(source), "-o", str(library)], check=True
    )
    sensors = nvml.Sensors("GPU-mine", str(library))
    seen = sensors.read()
    assert seen == nvml.Reading(0x44, 1980, 0)
    assert sensors.slowed() == seen.slowed
    assert seen.slowed == ["temperature (hardware)"], "a cap on power is none"
    assert nvml.Sensors("GPU-another", str(library)).read() == nvml.Reading()


def test_where_there_is_no_nvml() -> None:
    seen = nvml.Sensors("GPU-mine", "libno-such-thing.so.1").read()
    assert (seen, seen.slowed) == (nvml.Reading(), [])
