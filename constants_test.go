package kernelwright

import (
	"testing"
	"time"
)

func TestConstantsAreThoseOfTheirFiles(t *testing.T) {
	if Training.LastPoll.Duration != time.Second/4 || Training.ExitCodes["stopped"] != 7 || Shared.MaxFrameBytes != 64<<20 || Shared.SectorBytes != 32 {
		t.Errorf("read %+v and %+v", Shared, Training)
	}
	type two struct {
		A int     `toml:"a"`
		B Seconds `toml:"b_s"`
	}
	for name, text := range map[string]string{"missing": "a = 1", "unknown": "a = 1\nb_s = 2.0\nc = 3", "no number": "a = 1\nb_s = \"2s\"", "no TOML": "a"} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it was taken")
				}
			}()
			readConstants[two](text)
		})
	}
}
