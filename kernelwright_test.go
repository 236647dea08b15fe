package kernelwright

import (
	"math"
	"strings"
	"testing"
)

func TestScheduleSurvivesItsComment(t *testing.T) {
	want := Schedule{Plan: "softmax over rows", Knobs: map[string]Knob{"threads": {Value: 2, Choices: []int{1, 2}}}}
	source := "import torch\n" + want.Comment() + "\r\nclass ModelNew: pass\n"
	got, ok := ParseSchedule(source)
	if !ok || got.Plan != want.Plan || got.Knobs["threads"].Value != 2 || len(got.Knobs["threads"].Choices) != 2 {
		t.Fatalf("got %+v, %v", got, ok)
	}
}

func TestScheduleAbsentOrMalformed(t *testing.T) {
	for _, source := range []string{"", "import torch\n", schedulePrefix + "{\n", schedulePrefix + `{"knobs":[1]}`} {
		if s, ok := ParseSchedule(source); ok {
			t.Errorf("%q: got %+v", source, s)
		}
	}
}

func FuzzParseSchedule(f *testing.F) {
	f.Add(schedulePrefix + `{"plan":"x","knobs":{}}`)
	f.Fuzz(func(t *testing.T, source string) {
		if s, ok := ParseSchedule(source); ok {
			if again, ok := ParseSchedule(s.Comment()); !ok || again.Plan != strings.ToValidUTF8(s.Plan, "\ufffd") {
				t.Fatalf("%+v does not survive its own comment: %+v", s, again)
			}
		}
	})
}

func TestMixedGBs(t *testing.T) {
	measured := Ceilings{MemoryGBs: 4000, ReadGBs: 4400}
	for _, c := range []struct {
		ceilings      Ceilings
		read, written float64
		want          float64
	}{
		{measured, 1, 1, 4000}, {measured, 0, 1, 4000}, {measured, 1, 0, 4400}, {measured, 0, 0, 4000},
		{measured, 3, 1, 4 / (2/4400. + 2/4000.)},
		{measured, math.NaN(), 1, 4000},
		{Ceilings{MemoryGBs: 50}, 1, 0, 50}, {Ceilings{ReadGBs: 50}, 1, 0, 0},
	} {
		if got := c.ceilings.MixedGBs(c.read, c.written); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v, %v read and %v written: %v, want %v", c.ceilings, c.read, c.written, got, c.want)
		}
	}
}

func TestWins(t *testing.T) {
	var none *Speedup
	if none.Wins(0.05) {
		t.Error("no measurement must not win")
	}
	if (&Speedup{Value: 1.2, Low: 1.04, High: 1.4}).Wins(0.05) {
		t.Error("an interval reaching below the margin must not win")
	}
	if !(&Speedup{Value: 1.2, Low: 1.06, High: 1.4}).Wins(0.05) {
		t.Error("an interval above the margin must win")
	}
}

func TestVague(t *testing.T) {
	for _, c := range []struct {
		s    *Speedup
		want bool
	}{
		{nil, false},
		{&Speedup{Value: 1, Low: 0.9, High: 1.1}, false},
		{&Speedup{Value: 6.46, Low: 0.37, High: 14.52}, true},
		{&Speedup{Value: 1.28, Low: 0, High: 1.47}, true},
		{&Speedup{Value: 3, Low: 1.1, High: 5}, false},     // it is faster, by how much or little
		{&Speedup{Value: 0.5, Low: 0.1, High: 0.9}, false}, // or slower
	} {
		if got := c.s.Vague(); got != c.want {
			t.Errorf("%+v: %v", c.s, got)
		}
	}
}

func TestDegenerate(t *testing.T) {
	if (Task{Flags: []TaskFlag{FlagIllConditioned}}).Degenerate() || !(Task{Flags: []TaskFlag{FlagIgnoresInput}}).Degenerate() {
		t.Error("degenerate is constant output or ignored input")
	}
	if n := (TensorSpec{Shape: []int{3, 4}}).Numel(); n != 12 {
		t.Errorf("numel %d", n)
	}
	if s := (Device{Kind: CUDADevice, Index: 1}).String(); s != "cuda:1" {
		t.Error(s)
	}
}
