package report

import "testing"

func TestMetricsHaveTheirUnits(t *testing.T) {
	got := chips(map[string]float64{"memory_share": 0.0634, "working_set_bytes": 33591296, "achieved_gbs": 2.99, "custom_calls": 3, "instructions_per_cycle": 1.25, "nobody_knows\n": 7, "sm_mhz": 1980})
	want := map[string]string{
		"memory_share": "6.34 %", "working_set_bytes": "32.0 MiB", "achieved_gbs": "2.99 GB/s", "custom_calls": "3",
		"instructions_per_cycle": "1.25", Line("nobody_knows\n"): "7", "sm_mhz": "1980 MHz",
	}
	if len(got) != len(want) {
		t.Fatalf("%d of %d", len(got), len(want))
	}
	for _, c := range got {
		if c.Value != want[c.Name] {
			t.Errorf("%s is %q, want %q", c.Name, c.Value, want[c.Name])
		}
	}
	if got[0].Name != "achieved_gbs" || got[0].Meaning == "" {
		t.Errorf("%+v", got[0])
	}
}
