//go:build cgo && linux

package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// List returns the GPUs of this machine in the driver's order, which is that of
// their device nodes, or of them those of some numbers alone. Their State is
// left out: the more others ask of the driver, the longer each question takes.
// The error is an *AbsentError where there is no GPU.
func List(only ...int) ([]GPU, error) { return list(nvml.New(), nil, only...) }

// ListNow returns all of them with how they are just now.
func ListNow() ([]GPU, error) { return list(nvml.New(), now) }

func list(lib nvml.Interface, state func(nvml.Device) State, only ...int) ([]GPU, error) {
	if r := lib.Init(); r != nvml.SUCCESS {
		return nil, absent(r)
	}
	defer lib.Shutdown() //nolint:errcheck // nothing is lost by it
	count, r := lib.DeviceGetCount()
	if r != nvml.SUCCESS {
		return nil, absent(r)
	}
	if count == 0 {
		return nil, &AbsentError{Reason: "the NVIDIA driver shows no GPU"}
	}
	driver, _ := lib.SystemGetDriverVersion() // empty where it cannot say
	cuda, _ := lib.SystemGetCudaDriverVersion()
	var gpus []GPU
	for i := range count {
		if len(only) > 0 && !slices.Contains(only, i) {
			continue
		}
		d, r := lib.DeviceGetHandleByIndex(i)
		if r == nvml.ERROR_GPU_IS_LOST || r == nvml.ERROR_UNKNOWN {
			continue // it fell off the bus; the others go on
		}
		if r != nvml.SUCCESS {
			return nil, absent(r)
		}
		g := describe(d)
		g.Index, g.Driver = i, driver
		if state != nil {
			g.State = state(d)
		}
		if cuda > 0 {
			g.CUDA = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
		}
		gpus = append(gpus, g)
	}
	if len(gpus) == 0 && len(only) == 0 {
		return nil, &AbsentError{Reason: "every GPU of this machine is lost", Hint: "look at the kernel's log (dmesg) for Xid, and restart the machine"}
	}
	return gpus, nil
}

// describe asks one question after the other: what a GPU or a driver does not
// answer stays unknown.
func describe(d nvml.Device) GPU {
	var g GPU
	g.UUID, _ = d.GetUUID()
	g.Name, _ = d.GetName()
	if pci, r := d.GetPciInfo(); r == nvml.SUCCESS {
		g.PCI = text(pci.BusId[:])
	}
	major, minor, r := d.GetCudaComputeCapability()
	if r == nvml.SUCCESS {
		g.Compute = fmt.Sprintf("%d.%d", major, minor)
	}
	if minor, r := d.GetMinorNumber(); r == nvml.SUCCESS {
		g.Minor = minor
	}
	if cores, r := d.GetNumGpuCores(); r == nvml.SUCCESS {
		if a, ok := ArchitectureOf(g.Compute); ok {
			g.SMs = cores / a.FP32
		}
	}
	if m, r := d.GetMemoryInfo(); r == nvml.SUCCESS {
		g.MemoryBytes = int64(m.Total)
	}
	g.BusBits = number(d.GetMemoryBusWidth())
	g.SMClockMHz = number(d.GetMaxClockInfo(nvml.CLOCK_SM))
	g.MemClockMHz = number(d.GetMaxClockInfo(nvml.CLOCK_MEM))
	g.PowerW = number(d.GetEnforcedPowerLimit()) / 1000
	if mode, _, r := d.GetMigMode(); r == nvml.SUCCESS {
		g.MIG = mode == nvml.DEVICE_MIG_ENABLE
	}
	if mode, _, r := d.GetEccMode(); r == nvml.SUCCESS {
		g.ECC = mode == nvml.FEATURE_ENABLED
	}
	return g
}

// now asks a GPU in the same way how it is.
func now(d nvml.Device) State {
	var s State
	if m, r := d.GetMemoryInfo(); r == nvml.SUCCESS {
		s.FreeBytes = int64(m.Free)
	}
	if u, r := d.GetUtilizationRates(); r == nvml.SUCCESS {
		load := float64(u.Gpu) / 100
		s.Load = &load
	}
	s.SMClockMHz = number(d.GetClockInfo(nvml.CLOCK_SM))
	s.MemClockMHz = number(d.GetClockInfo(nvml.CLOCK_MEM))
	s.TemperatureC = number(d.GetTemperature(nvml.TEMPERATURE_GPU))
	s.PowerW = number(d.GetPowerUsage()) / 1000
	if reasons, r := d.GetCurrentClocksEventReasons(); r == nvml.SUCCESS {
		s.Throttled = throttles(reasons)
	}
	if n, r := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); r == nvml.SUCCESS {
		s.ECCErrors = n
	}
	if processes, r := d.GetComputeRunningProcesses(); r == nvml.SUCCESS {
		for _, p := range processes {
			// NVML_VALUE_NOT_AVAILABLE is -1.
			s.Processes = append(s.Processes, Process{PID: int(p.Pid), Bytes: max(0, int64(p.UsedGpuMemory))})
		}
	}
	return s
}

func number(n uint32, r nvml.Return) int {
	if r != nvml.SUCCESS {
		return 0
	}
	return int(n)
}

func text[C int8 | uint8](chars []C) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// throttles names the reasons for which clocks are held down, of those that
// make a time worth less.
func throttles(reasons uint64) []string {
	var names []string
	for _, r := range []struct {
		bit  uint64
		name string
	}{
		{nvml.ClocksEventReasonSwPowerCap, "power limit"},
		{nvml.ClocksThrottleReasonHwSlowdown, "hardware slowdown"},
		{nvml.ClocksThrottleReasonHwThermalSlowdown, "temperature"},
		{nvml.ClocksEventReasonSwThermalSlowdown, "temperature, by the driver"},
		{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "power brake"},
		{nvml.ClocksEventReasonSyncBoost, "another GPU of its group"},
		{nvml.ClocksEventReasonApplicationsClocksSetting, "clocks that somebody set"},
	} {
		if reasons&r.bit != 0 {
			names = append(names, r.name)
		}
	}
	return names
}

// absent turns NVML's answer into a sentence.
func absent(r nvml.Return) error {
	switch r {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return &AbsentError{Reason: "there is no NVIDIA driver here", Hint: "install NVIDIA's driver"}
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return &AbsentError{Reason: "the NVIDIA driver is installed and not loaded", Hint: "load it (modprobe nvidia), or restart the machine"}
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return &AbsentError{Reason: "the NVIDIA driver and its libraries are of different versions", Hint: "restart the machine: the driver was updated while it was loaded"}
	case nvml.ERROR_NO_PERMISSION:
		return &AbsentError{Reason: "the GPU may not be used by this user", Hint: "look at who may open /dev/nvidia*"}
	case nvml.ERROR_GPU_IS_LOST:
		return &AbsentError{Reason: "the GPU has fallen off the bus", Hint: "look at the kernel's log (dmesg) for Xid, and restart the machine"}
	}
	return &AbsentError{Reason: "NVML says: " + strings.ToLower(r.Error()), Hint: "see whether nvidia-smi works"}
}
