package judge_test

import (
	"encoding/json"
	"reflect"
	"testing"

	kw "github.com/kernelwright/kernelwright"
)

// Whatever a verdict and a candidate's schedule say, the rules answer with a
// sound feedback, the same each time, that survives the form in which it is
// kept.
func FuzzJudge(f *testing.F) {
	for _, v := range []kw.Verdict{wrong(family("near_overflow", false, 2, 1)), {Status: kw.Crashed, Reason: "died of a segmentation fault (SIGSEGV)"},
		{Status: kw.Correct, CandidateMS: 1, Headroom: 0.4, Metrics: map[string]float64{"memory_share": 0.9, "core_use": 0.2, "missed_loops": 3}}} {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, kw.Schedule{Plan: "softmax", Knobs: map[string]kw.Knob{"tile": {Value: 2, Choices: []int{1, 2, 4}}, "fuse": {Value: 1, Choices: []int{0, 1}}}}.Comment())
	}
	f.Add([]byte(`{"status":"wrong","candidate_ms":-1,"metrics":{"threads":-5e300}}`), `# kernelwright-schedule: {"knobs":{"":{"value":-9,"choices":[]}}}`)
	f.Add([]byte(`{"status":"correct","candidate_ms":1,"profile":{"tool":"ncu","launches":2,"ms":0.5,"kernels":[{"name":"k","whose":"custom","share":1,"grid":[7,1,1],"block":[256,1,1],"metrics":{"launch__waves_per_multiprocessor":1.1}}]},
		"build":{"kernels":[{"name":"k","registers":255,"spill_load_bytes":9}]}}`), "")
	f.Fuzz(func(t *testing.T, verdict []byte, source string) {
		device := device
		if len(verdict)%2 == 0 {
			device = gpu
		}
		in := kw.JudgeInput{Device: device, Want: kw.Optimisation, Current: kw.Attempt{Candidate: kw.Candidate{Source: source}}}
		if json.Unmarshal(verdict, &in.Current.Verdict) != nil {
			return
		}
		if !in.Current.Verdict.Status.OK() {
			in.Want = kw.Correction
		}
		said := feedback(t, in)
		if again := feedback(t, in); !reflect.DeepEqual(said, again) {
			t.Fatalf("%+v, then %+v", said, again)
		}
		b, err := json.Marshal(said)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kw.ParseFeedback(b); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
	})
}
