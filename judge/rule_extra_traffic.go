package judge

import (
	"fmt"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/metrics"
)

// extraTraffic is for bytes that move though the task does not need them to: a
// row that is read again, a tensor that one kernel writes for the next. The gain
// is the time that these bytes take at the memory's bandwidth.
func extraTraffic(v view) (finding, bool) {
	f := finding{
		method: "Move each byte once",
		plan: "Keep a row in registers or shared memory from one pass to the next, join passes (a maximum and its sum in one, with rescaling; a mean and its variance by " +
			"Welford's), and compute intermediate tensors where they are used instead of writing them.",
		evidence: v.evidence(metrics.MemoryShare, metrics.WorkingSetBytes),
		moves:    []move{{"keep", toMost}, {"passes", toLeast}, {"fuse", toMost}, {"team", toUp}},
	}
	least := float64(v.verdict.Floor.Bytes)
	if read, written, ok := v.movedBytes(); ok {
		moved, ceiling := read+written, v.device.Ceilings.MixedGBs(read, written)
		extra := moved - least
		if v.launched() > 1 {
			// ncu empties the caches before each kernel. By itself one finds in L2 what
			// the one before it left there, as far as half of it.
			extra -= float64(v.device.Specs.L2Bytes) / 2
		}
		whole := gpuKernel{counted: v.verdict.Profile.Metrics}
		for _, name := range []string{metrics.LocalLoaded, metrics.LocalStored} { // spills are another matter
			local, _ := whole.count(name)
			extra -= local
		}
		if least <= 0 || ceiling <= 0 || v.verdict.CandidateMS <= 0 || extra <= 0 {
			return finding{}, false
		}
		f.bottleneck = fmt.Sprintf("Extra traffic: %s move where the task has %s, %.3g times as many.", byteSize(moved), byteSize(least), moved/least)
		f.gain = within(extra / 1e6 / ceiling / v.verdict.CandidateMS)
		f.evidence["dram_bytes_ratio"] = moved / least
		return f, true
	}
	// Nobody counted: the candidate itself may say that it goes over rows again, or
	// hands tensors from kernel to kernel.
	share, ok := v.metric(metrics.MemoryShare)
	how := v.again()
	if !ok || how == "" || share <= 0 || share >= ceilingShare || !beyondCache(v) {
		return finding{}, false
	}
	f.bottleneck = fmt.Sprintf("Extra traffic, as far as can be told without counters: the task's bytes have %s of the memory's bandwidth, and the candidate %s.", percent(within(share)), how)
	f.gain = oneStep * (1 - within(share))
	return f, true
}

// again says why a candidate's schedule would have bytes move twice; empty where
// it does not tell.
func (v view) again() string {
	schedule, ok := kernelwright.ParseSchedule(v.candidate.Source)
	if !ok {
		return ""
	}
	for _, sign := range []struct {
		knob string
		at   int
		says string
	}{{"fuse", 0, "writes intermediate results for the next kernel"}, {"keep", 0, "reads rows again instead of keeping them"}, {"passes", 3, "goes over a row for each reduction"}} {
		k, has := schedule.Knobs[sign.knob]
		if has && k.Value == sign.at && len(k.Choices) > 1 {
			return sign.says
		}
	}
	return ""
}
