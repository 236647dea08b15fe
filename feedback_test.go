package kernelwright

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestParseFeedback(t *testing.T) {
	const optimisation = `{"kind":"optimisation","bottleneck":"memory","method":"fuse","plan":"join the loops","evidence":{"memory_share":0.9},"knobs":{"fuse":1}}`
	for _, c := range []struct{ name, text, err string }{
		{"optimisation", optimisation, ""},
		{"correction", `{"kind":"correction","issue":"a","why":"b","fix":"c"}`, ""},
		{"stop", `{"kind":"stop","why":"at the floor"}`, ""},
		{"spaces", "\n" + optimisation + " \n", ""},
		{"empty", ``, "missing"},
		{"cut", optimisation[:40], "ends too early"},
		{"prose after", optimisation + " I hope this helps", "after the JSON"},
		{"two objects", optimisation + optimisation, "after the JSON"},
		{"unknown key", `{"kind":"stop","why":"x","speed":2}`, `"speed"`},
		{"no kind", `{"why":"x"}`, `"kind" is missing`},
		{"unknown kind", `{"kind":"praise"}`, `"praise"`},
		{"no plan", `{"kind":"optimisation","bottleneck":"a","method":"b"}`, `"plan"`},
		{"blank fix", `{"kind":"correction","issue":"a","why":"b","fix":" "}`, `"fix"`},
		{"both kinds", `{"kind":"correction","issue":"a","why":"b","fix":"c","plan":"d"}`, `"plan"`},
		{"stop without why", `{"kind":"stop"}`, `"why"`},
		{"stop with knobs", `{"kind":"stop","why":"x","knobs":{"a":1}}`, `"knobs"`},
		{"fraction for a knob", `{"kind":"stop","why":"x","knobs":{"a":1.5}}`, "knobs"},
		{"not an object", `[1]`, "array"},
		{"not UTF-8", "{\"kind\":\"stop\",\"why\":\"\xff\"}", "UTF-8"},
		{"too long", `{"kind":"stop","why":"` + strings.Repeat("x", MaxFeedbackBytes) + `"}`, "too many"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseFeedback([]byte(c.text))
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %v, want %q", err, c.err)
			}
		})
	}
}

func TestValidateRefusesEvidenceThatIsNoNumber(t *testing.T) {
	f := Feedback{Kind: Stop, Why: "x", Evidence: map[string]float64{"headroom": math.NaN()}}
	if f.Validate() == nil {
		t.Error("NaN passed")
	}
}

func FuzzParseFeedback(f *testing.F) {
	f.Add([]byte(`{"kind":"optimisation","bottleneck":"memory","method":"fuse","plan":"join","knobs":{"fuse":1}}`))
	f.Add([]byte(`{"kind":"correction","issue":"a","why":"b","fix":"c","evidence":{"x":1e308}}`))
	f.Add([]byte(`{"kind":"stop","why":"x"}{`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := ParseFeedback(b)
		if err != nil {
			return
		}
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > MaxFeedbackBytes { // escaping may lengthen it
			return
		}
		again, err := ParseFeedback(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		// An empty map is left out of JSON, so it may come back as none.
		if len(got.Knobs) == 0 {
			got.Knobs, again.Knobs = nil, nil
		}
		if len(got.Evidence) == 0 {
			got.Evidence, again.Evidence = nil, nil
		}
		if !reflect.DeepEqual(got, again) {
			t.Fatalf("%+v came back as %+v", got, again)
		}
	})
}
