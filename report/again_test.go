package report

import (
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

func TestANoteThatAsksForAnotherMeasurementIsACommand(t *testing.T) {
	d := finished()
	d.Run.Path, d.Run.Device = "/home/me/my kernels/it's.py", "cuda:1"
	i := len(d.Rounds) - 1
	for d.Rounds[i].Certificate == nil {
		i--
	}
	d.Rounds[i].Certificate.Speedup = &kernelwright.Speedup{Value: 1.3, Low: 0.5, High: 1.9, Against: "compile"}
	want := `--out kernel.py && kernelwright eval '/home/me/my kernels/it'\''s.py' kernel.py --level certify --again --device cuda:1`
	if got := Again(d); !strings.HasSuffix(got, want) {
		t.Errorf("got %q", got)
	}
	if got := headline(d); !strings.Contains(got, "On a quiet machine `kernelwright export ") {
		t.Errorf("the headline has no command: %q", got)
	}
	if got := strings.Join(Summarise(d).Notes, "\n"); !strings.Contains(got, "on a quiet machine: `kernelwright export ") {
		t.Errorf("the table has no command: %q", got)
	}
	d.Rounds[i].Certificate.Status = kernelwright.Wrong
	if got := Again(d); got != "" {
		t.Errorf("there is nothing to export: %q", got)
	}

	note := "the referee's clock resolves 3 us here, over 5 % of the time: " + asksAgain
	for _, tt := range []struct{ note, again, want string }{
		{note, "kernelwright eval a b", note + ": `kernelwright eval a b`"},
		{note, "", note},
		{"something else", "kernelwright eval a b", "something else"},
	} {
		if got := Note(tt.note, tt.again); got != tt.want {
			t.Errorf("got %q", got)
		}
	}
}
