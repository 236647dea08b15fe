package kernelwright

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// What is assumed is a list on the wire, also where there is nothing.
func TestAssumptionsAreAList(t *testing.T) {
	for _, c := range []struct {
		assumes Assumptions
		want    string
	}{
		{nil, `"assumes":[]`},
		{Assumptions{}, `"assumes":[]`},
		{Assumptions{"takes shift = 1 for granted"}, `"assumes":["takes shift = 1 for granted"]`},
	} {
		b, err := json.Marshal(Verdict{Assumes: c.assumes})
		if err != nil || !strings.Contains(string(b), c.want) {
			t.Errorf("%v: %s (%v)", c.assumes, b, err)
		}
		var v Verdict
		if err := json.Unmarshal(b, &v); err != nil || !slices.Equal(v.Assumes, c.assumes) || (len(c.assumes) == 0 && v.Assumes != nil) {
			t.Errorf("%v came back as %v (%v)", c.assumes, v.Assumes, err)
		}
	}
	// Records of earlier versions have none.
	var v Verdict
	if err := json.Unmarshal([]byte(`{"status":"correct"}`), &v); err != nil || v.Assumes != nil {
		t.Errorf("%v (%v)", v.Assumes, err)
	}
	if err := json.Unmarshal([]byte(`{"assumes":"x"}`), &v); err == nil {
		t.Error("a text was read as a list")
	}
}

// How weights are known is a word on the wire, as scripts look for it.
func TestWeightsAreAWord(t *testing.T) {
	for _, by := range []string{WeightsByName, WeightsByValue, WeightsBySeed} {
		b, err := json.Marshal(Verdict{Weights: by})
		if err != nil || !strings.Contains(string(b), `"weights":"`+by+`"`) {
			t.Errorf("%s: %s (%v)", by, b, err)
		}
		var v Verdict
		if err := json.Unmarshal(b, &v); err != nil || v.Weights != by {
			t.Errorf("%s came back as %q (%v)", by, v.Weights, err)
		}
	}
	if b, err := json.Marshal(Verdict{}); err != nil || strings.Contains(string(b), "weights") {
		t.Errorf("who came to none has none: %s (%v)", b, err)
	}
}
