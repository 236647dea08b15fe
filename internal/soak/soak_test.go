package soak

import "testing"

func TestTurn(t *testing.T) {
	t.Setenv(Env, "")
	for k := range 5 {
		turns := 0
		for _, day := range []string{"20000", "20001", "20002"} {
			t.Setenv(DayEnv, day)
			if Turn(t, k, 3) {
				turns++
			}
		}
		if turns != 1 {
			t.Errorf("case %d has %d turns in three days", k, turns)
		}
	}
	t.Setenv(Env, "weekly")
	if !Turn(t, 1, 3) || !Turn(t, 2, 3) {
		t.Error("weekly, each has its turn")
	}
}
