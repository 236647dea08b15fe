package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/kernelwright/kernelwright/api"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

// samples looks at the devices that a daemon measures on.
type samples struct {
	gpus map[string]bool // by the names of devices; nil: there is none
	cpu  bool

	mu         sync.Mutex
	busy, idle uint64 // of all cores, at the last look
}

// sampler returns who looks at the devices of a setting.
func sampler(device string) *samples {
	s := &samples{}
	names, err := hwfeedback.Devices(device)
	if err != nil {
		return s
	}
	for _, name := range names {
		if strings.HasPrefix(name, "cuda") {
			if s.gpus == nil {
				s.gpus = map[string]bool{}
			}
			s.gpus[name] = true
		} else {
			s.cpu = true
		}
	}
	if s.cpu {
		s.load() // the next look has a share since this one
	}
	return s
}

// sample looks. What cannot be seen is not known.
func (s *samples) sample(context.Context) []api.Sample {
	var all []api.Sample
	if s.cpu {
		all = append(all, s.ofCPU())
	}
	if s.gpus == nil {
		return all
	}
	found, err := gpu.ListNow()
	if err != nil {
		return all
	}
	for i, g := range found {
		name := "cuda:" + strconv.Itoa(g.Index)
		if !s.gpus[name] && (i > 0 || !s.gpus["cuda"]) {
			continue
		}
		all = append(all, ofGPU(name, g))
	}
	return all
}

func ofGPU(name string, g gpu.GPU) api.Sample {
	one := api.Sample{Device: name, Name: g.Name, Load: g.State.Load}
	if g.MemoryBytes > 0 && g.State.FreeBytes > 0 {
		used := g.MemoryBytes - g.State.FreeBytes
		one.Memory, one.MemoryUsed = &g.MemoryBytes, &used
	}
	for _, v := range []struct {
		to *(*float64)
		is int
	}{{&one.TemperatureC, g.State.TemperatureC}, {&one.SMClockMHz, g.State.SMClockMHz}, {&one.MemClockMHz, g.State.MemClockMHz}, {&one.PowerW, g.State.PowerW}} {
		if v.is > 0 {
			is := float64(v.is)
			*v.to = &is
		}
	}
	return one
}

// ofCPU reads what the kernel says of the machine: proc(5), and hwmon and cpufreq of sysfs.
func (s *samples) ofCPU() api.Sample {
	one := api.Sample{Device: "cpu", Name: strconv.Itoa(runtime.NumCPU()) + " cores", Load: s.load()}
	if total, free := memoryOf("MemTotal:"), memoryOf("MemAvailable:"); total != nil && free != nil {
		used := *total - *free
		one.Memory, one.MemoryUsed = total, &used
	}
	if mhz := numbersIn("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"); len(mhz) > 0 {
		sum := 0.0
		for _, khz := range mhz {
			sum += khz / 1000
		}
		mean := sum / float64(len(mhz))
		one.SMClockMHz = &mean
	}
	for _, sensor := range []string{"coretemp", "k10temp", "zenpower"} {
		if t := hottest(sensor); t != nil {
			one.TemperatureC = t
			break
		}
	}
	return one
}

// load is the share of the cores' time since the last look that was not idle; nil: this
// is the first.
func (s *samples) load() *float64 {
	text, err := os.ReadFile("/proc/stat")
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := strings.Fields(string(line))
	if err != nil || len(fields) < 6 {
		return nil
	}
	var busy, idle uint64
	for i, field := range fields[1:min(len(fields), 9)] { // guests are counted in user time
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return nil
		}
		if i == 3 || i == 4 { // idle, and waiting for a disk
			idle += n
		} else {
			busy += n
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	passed := float64(busy-s.busy) + float64(idle-s.idle)
	share := float64(busy-s.busy) / passed
	first := s.busy == 0
	s.busy, s.idle = busy, idle
	if first || passed <= 0 || share < 0 || share > 1 {
		return nil
	}
	return &share
}

// memoryOf reads a line of /proc/meminfo, in bytes.
func memoryOf(name string) *int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name {
			kb, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return nil
			}
			kb <<= 10
			return &kb
		}
	}
	return nil
}

// hottest is the highest temperature of a sensor, in degrees.
func hottest(sensor string) *float64 {
	names, err := filepath.Glob("/sys/class/hwmon/hwmon*/name")
	if err != nil {
		return nil
	}
	var most *float64
	for _, path := range names {
		if text, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(text)) != sensor {
			continue
		}
		for _, milli := range numbersIn(filepath.Join(filepath.Dir(path), "temp*_input")) {
			if t := milli / 1000; most == nil || t > *most {
				most = &t
			}
		}
	}
	return most
}

// numbersIn are the numbers that files hold.
func numbersIn(pattern string) []float64 {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil
	}
	var all []float64
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err == nil {
			all = append(all, n)
		}
	}
	return all
}
