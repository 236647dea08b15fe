//go:build cgo && linux

package gpu

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
)

func TestThisMachine(t *testing.T) {
	gpus, err := ListNow()
	var absent *AbsentError
	if errors.As(err, &absent) {
		if absent.Hint == "" {
			t.Errorf("%v without a hint", err)
		}
		t.Skipf("no GPU here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range gpus {
		t.Logf("%+v", g)
		if g.UUID == "" || g.SMs == 0 || g.MemoryBytes == 0 || g.TheoreticalGBs() < 100 {
			t.Errorf("%+v", g)
		}
	}
}

func TestEightOfThem(t *testing.T) {
	server := dgxa100.New()
	for i, d := range server.Devices {
		d := d.(*dgxa100.Device)
		answers(&d.Device)
		if i == 3 {
			d.GetMemoryBusWidthFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		}
	}
	gpus, err := list(server, now)
	if err != nil || len(gpus) != 8 {
		t.Fatal(gpus, err)
	}
	if bare, err := list(server, nil); err != nil || len(bare) != 8 || bare[1].UUID != gpus[1].UUID || bare[1].MemoryBytes == 0 || !reflect.DeepEqual(bare[1].State, State{}) {
		t.Error(bare, err)
	}
	g := gpus[1]
	if g.Index != 1 || g.Compute != "8.0" || g.SMs != 108 || g.Driver == "" || g.MIG || !g.ECC {
		t.Errorf("%+v", g)
	}
	if math.Abs(g.TheoreticalGBs()-1555.2) > 0.1 || gpus[3].BusBits != 0 {
		t.Error(g.TheoreticalGBs(), gpus[3].BusBits)
	}
	if s := g.State; s.TemperatureC != 34 || !slices.Equal(s.Throttled, []string{"power limit", "temperature"}) || !slices.Equal(s.Processes, []Process{{4711, 1 << 20}, {4712, 0}}) {
		t.Errorf("%+v", s)
	}
}

func TestWhatStandsInTheWay(t *testing.T) {
	for r, want := range map[nvml.Return]string{
		nvml.ERROR_LIBRARY_NOT_FOUND:       "there is no NVIDIA driver here",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver and its libraries are of different versions",
	} {
		_, err := list(&mock.Interface{InitFunc: func() nvml.Return { return r }}, nil)
		var absent *AbsentError
		if !errors.As(err, &absent) || absent.Reason != want || absent.Hint == "" {
			t.Errorf("%v: %v", r, err)
		}
	}
}

func TestALostOneIsLeftOut(t *testing.T) {
	server := dgxa100.New()
	for _, d := range server.Devices {
		answers(&d.(*dgxa100.Device).Device)
	}
	whole := server.DeviceGetHandleByIndexFunc
	server.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 2 {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return whole(i)
	}
	gpus, err := list(server, nil)
	if err != nil || len(gpus) != 7 || gpus[2].Index != 3 {
		t.Error(len(gpus), err)
	}
	for only, there := range map[int]int{5: 1, 2: 0, 8: 0} {
		gpus, err := list(server, nil, only)
		if err != nil || len(gpus) != there || there == 1 && gpus[0].Index != only {
			t.Error(only, gpus, err)
		}
	}
}

func TestArchitectures(t *testing.T) {
	// What the papers give for whole products: 1e12 dense operations a second.
	for _, p := range []struct {
		compute, dtype string
		sms            int
		mhz, want      float64
	}{
		{"7.0", "float16", 80, 1530, 125},
		{"8.0", "float16", 108, 1410, 312},
		{"8.0", "tf32", 108, 1410, 156},
		{"8.9", "float8", 128, 2520, 660.6},
		{"9.0", "float16", 132, 1830, 989.4},
		{"9.0", "float8", 132, 1830, 1978.9},
	} {
		a, ok := ArchitectureOf(p.compute)
		got := 2 * float64(a.Tensor[p.dtype]*p.sms) * p.mhz * 1e6 / 1e12
		if !ok || math.Abs(got-p.want) > 0.01*p.want {
			t.Errorf("%s %s: %.0f, want %.0f", p.compute, p.dtype, got, p.want)
		}
	}
	for compute, a := range architectures {
		if a.SharedOfBlock > a.SharedBytes || a.Registers != 65536 || a.Warps%16 != 0 {
			t.Errorf("%s: %+v", compute, a)
		}
	}
}

// answers gives a mocked device what the mock itself leaves open.
func answers(d *mock.Device) {
	d.GetNumGpuCoresFunc = func() (int, nvml.Return) { return 6912, nvml.SUCCESS }
	d.GetMemoryBusWidthFunc = func() (uint32, nvml.Return) { return 5120, nvml.SUCCESS }
	d.GetMaxClockInfoFunc = func(c nvml.ClockType) (uint32, nvml.Return) {
		return map[nvml.ClockType]uint32{nvml.CLOCK_SM: 1410, nvml.CLOCK_MEM: 1215}[c], nvml.SUCCESS
	}
	d.GetClockInfoFunc = d.GetMaxClockInfoFunc
	d.GetEnforcedPowerLimitFunc = func() (uint32, nvml.Return) { return 400_000, nvml.SUCCESS }
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 61_500, nvml.SUCCESS }
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 50}, nvml.SUCCESS } //nolint:misspell // NVML's name
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 34, nvml.SUCCESS }
	d.GetEccModeFunc = func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
		return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) {
		return nvml.ClocksEventReasonSwPowerCap | nvml.ClocksThrottleReasonHwThermalSlowdown | nvml.ClocksEventReasonGpuIdle, nvml.SUCCESS
	}
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 0, nvml.SUCCESS }
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 4711, UsedGpuMemory: 1 << 20}, {Pid: 4712, UsedGpuMemory: math.MaxUint64}}, nvml.SUCCESS // of the second it does not tell
	}
}
