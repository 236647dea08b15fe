package hwfeedback

import (
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

func TestOthersOnAGPUAreNamed(t *testing.T) {
	root := machine(map[string]string{
		"proc/1/comm": "python3\n", "proc/2/comm": "VLLM::EngineCore\n", "proc/9/comm": "python\n",
		"proc/9/cmdline": "python\x00-I\x00data/harness/00ff/forkserver.py\x00--idle\x00300",
	})
	for want, there := range map[string][]gpu.Process{
		"":                     {{PID: 9, Bytes: 1e9}}, // ours
		"1 (python3, 12.3 GB)": {{PID: 9}, {PID: 1, Bytes: 12.34e9}},
		"1 (python3)":          {{PID: 1}},
		"7 (0.5 GB)":           {{PID: 7, Bytes: 5e8}}, // it has ended, or is in a container
		"2 (VLLM::EngineCore, 70.0 GB), 1 (python3, 1.0 GB), 7": {{PID: 7}, {PID: 1, Bytes: 1e9}, {PID: 2, Bytes: 70e9}},
		"3, 4, 5, 6, and 2 more":                                {{PID: 8}, {PID: 7}, {PID: 6}, {PID: 5}, {PID: 4}, {PID: 3}, {PID: 9}},
	} {
		if got := others(root, there); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCeilingsOfADevice(t *testing.T) {
	at := time.Date(2026, 11, 28, 9, 30, 0, 0, time.Local)
	gpu := kernelwright.Device{Kind: kernelwright.CUDADevice, Index: 1, Ceilings: kernelwright.Ceilings{
		MemoryGBs: 4012.4, ReadGBs: 4380, CacheGBs: 7810, FP32GFLOPs: 60200, CallUS: 1.318, MeasuredMS: at.UnixMilli(),
		TensorGFLOPs: map[string]float64{"tf32": 401e3, "float16": 750.4e3, "int8": 1480e3},
	}}
	bare := kernelwright.Device{Kind: kernelwright.CUDADevice, Ceilings: kernelwright.Ceilings{MemoryGBs: 300, CacheGBs: 900, FP32GFLOPs: 8100, CallUS: 2}}
	cpu := kernelwright.Device{Kind: kernelwright.CPUDevice, Ceilings: kernelwright.Ceilings{MemoryGBs: 20.12, CacheGBs: 155, FP32GFLOPs: 210, CallUS: 0.2}}
	for name, c := range map[string]struct {
		device kernelwright.Device
		spread float64
		name   string
		note   string
		cost   string
	}{
		"a GPU": {gpu, 0.02, "ceilings cuda:1", "DRAM 4012 GB/s in a copy (read and written), 4380 GB/s read alone, L2 7810 GB/s, FP32 60.2 TFLOP/s, " +
			"tensor cores float16 750 TFLOP/s, int8 1480 TOP/s, tf32 401 TFLOP/s, a launch 1.32 µs, measured 2026-11-28 09:30:00", ""},
		"a GPU without tensor cores": {bare, 0.3, "ceilings cuda:0", "DRAM 300 GB/s in a copy (read and written), L2 900 GB/s, FP32 8.1 TFLOP/s, a launch 2.00 µs", "up to 30 % of it went elsewhere"},
		"a CPU":                      {cpu, 0.1, "ceilings cpu", "memory 20.1 GB/s, cache 155.0 GB/s, 210 GFLOP/s, a native call 0.20 µs", ""},
	} {
		got := ceilingsCheck(c.device, c.spread)
		if got.Name != c.name || got.Note != c.note || got.OK != (c.cost == "") || !strings.Contains(got.Cost, c.cost) || got.OK && got.Cost != "" {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
