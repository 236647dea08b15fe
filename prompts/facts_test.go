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

// What came of each round, from which it goes on, and what it was advised; the
// candidate that is evaluated last.
func TestEarlierRounds(t *testing.T) {
	at := func(n int) *int { return &n }
	right := func(i int, parent *int, ms float64, f *kernelwright.Feedback) kernelwright.Round {
		return kernelwright.Round{Index: i, Parent: parent, Verdict: kernelwright.Verdict{Status: kernelwright.Correct, CandidateMS: ms}, Feedback: f}
	}
	advised := func(method string) *kernelwright.Feedback {
		return &kernelwright.Feedback{Kind: kernelwright.Optimisation, Method: method, Plan: method + " in run0."}
	}
	rounds := []kernelwright.Round{
		right(0, nil, 5, advised("Unroll")),
		right(1, at(-1), 4, advised("Tile")),
		{Index: 2, Parent: at(0), Verdict: kernelwright.Verdict{Status: kernelwright.Wrong, Reason: "It differs."}, Feedback: &kernelwright.Feedback{Kind: kernelwright.Correction, Issue: "i", Fix: "Mask the tail"}},
		right(3, at(1), 3, nil),
	}
	for _, c := range []struct {
		rounds []kernelwright.Round
		parent *int
		want   string
	}{
		{nil, nil, ""},
		{rounds[:1], nil, "round 0, from the task alone: correct, 5 ms; then advised: Unroll: Unroll in run0.\nthe candidate here, from round 0\n"},
		{rounds, at(1), "round 0, from the task alone: correct, 5 ms; then advised: Unroll: Unroll in run0.\nround 1, from the task alone: correct, 4 ms; then advised: Tile: Tile in run0.\n" +
			"round 2, from round 0: wrong: It differs.; then advised: Mask the tail\nround 3, from round 1: correct, 3 ms\nthe candidate here, from round 1\n"},
	} {
		got := string(EarlierRounds(c.rounds, c.parent))
		got = strings.TrimSuffix(strings.TrimPrefix(got, "```data: earlier rounds\n"), "```")
		if got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	var many []kernelwright.Round
	for i := range 12 {
		many = append(many, right(i, nil, 1, nil))
	}
	if got := string(EarlierRounds(many, nil)); !strings.Contains(got, "4 rounds before these\nround 4, from round 3: ") || !strings.Contains(got, "the candidate here, from round 11\n") {
		t.Error(got)
	}
}
