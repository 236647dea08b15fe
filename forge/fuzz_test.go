package forge

import (
	"strings"
	"testing"
)

// The settings of a recorded run are settings that are recorded the same
// again, or an error in one line.
func FuzzParseSettings(f *testing.F) {
	f.Add("")
	f.Add(DefaultSettings().String())
	f.Add(`{"rounds":-1}`)
	f.Add(`{"wall_time_ms":9223372036854775807,"headroom_stop":1e308,"judge":"x\ny"}`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSettings(text)
		if err != nil {
			if strings.ContainsRune(err.Error(), '\n') {
				t.Fatalf("no sentence: %q", err)
			}
			return
		}
		again, err := ParseSettings(s.String())
		if err != nil || again != s {
			t.Fatalf("%+v came back as %+v: %v", s, again, err)
		}
	})
}
