package pipeline

import (
	"testing"
	"time"
)

// Minutes are told from hours and days.
func TestEstimate(t *testing.T) {
	cores, gpu := probed{Sampled: 40, Trained: 120}, probed{Sampled: 20_000, Trained: 100_000}
	for name, tt := range map[string]struct {
		recipe    Recipe
		probed    probed
		low, high time.Duration
	}{
		"a small recipe, two cores":   {Small().ForModel(), cores, 2 * time.Hour, 24 * time.Hour},
		"a small recipe, a GPU":       {Small().ForModel(), gpu, 10 * time.Minute, 2 * time.Hour},
		"the whole recipe, a GPU":     {Default(), gpu, 24 * time.Hour, 1000 * time.Hour},
		"the whole recipe, two cores": {Default(), cores, 1000 * time.Hour, 1e6 * time.Hour},
	} {
		e := tt.recipe.estimate(tt.probed)
		if all := e.all(); all < tt.low || all > tt.high || e.sampling <= 0 || e.training <= 0 || e.verdicts <= 0 {
			t.Errorf("%s: %v (%+v)", name, all, e)
		}
	}
	for d, want := range map[time.Duration]string{
		time.Second: "1 minutes", 20 * time.Minute: "20 minutes", 9*time.Hour + 20*time.Minute: "9 hours", 200 * time.Hour: "8 days",
	} {
		if got := about(d); got != want {
			t.Errorf("%v is %q, not %q", d, got, want)
		}
	}
}
