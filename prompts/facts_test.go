package prompts

import (
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

func TestDeviceFactsTellOfAnSM(t *testing.T) {
	d := kernelwright.Device{Kind: kernelwright.CUDADevice, Name: "a GPU", Specs: kernelwright.Specs{Cores: 132, ISA: []string{"sm_90"}}}
	if told := string(DeviceFacts(d)); strings.Contains(told, "an SM") {
		t.Errorf("nothing is known of it: %s", told)
	}
	d.Specs.SM = &kernelwright.SM{
		Threads: 2048, Warps: 64, Blocks: 32, Registers: 65536, SharedBytes: 228 << 10, SharedOfBlock: 227 << 10, FP32: 128, FP64: 64,
		Tensor: map[string]int{"tf32": 1024, "float16": 2048, "one\n```more": 1},
	}
	facts := DeviceFacts(d)
	inside := checkFence(t, facts, "device", MaxFactsBytes)
	for _, says := range []string{
		"\nspecs: 132 SMs, sm_90\n",
		"\nan SM holds at most: 2048 threads in 64 warps, 32 blocks, 65536 registers, 228 KiB of shared memory (a block 227 KiB)\n",
		"\nan SM's multiply-adds a clock: float32 128, float64 64; tensor cores float16 2048, one ",
		", tf32 1024",
	} {
		if !strings.Contains(inside+"\n", says) {
			t.Errorf("%q is missing: %s", says, inside)
		}
	}
	d.Specs.SM.Tensor = nil
	if told := string(DeviceFacts(d)); strings.Contains(told, "tensor") {
		t.Errorf("it has no tensor cores: %s", told)
	}
}
