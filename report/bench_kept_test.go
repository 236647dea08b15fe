package report

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/kernelwright/kernelwright/store"
)

// A bench that has ended is kept with its figures, for one version of kernelwright.
func TestABenchIsKept(t *testing.T) {
	db, err := store.Open(filepath.Join(t.TempDir(), "record.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	b := aBench()
	b.ID = 7
	f := Figures(b)
	for _, finished := range []int64{0, 1} {
		b.FinishedMS = finished
		if err := KeepBench(t.Context(), db, "1", b, f); err != nil {
			t.Fatal(err)
		}
		for version, want := range map[string]bool{"1": finished != 0, "2": false} {
			got, figures, kept, err := KeptBench(t.Context(), db, version, b.Bench)
			if err != nil || kept != want {
				t.Fatalf("finished %d, version %s: kept is %v, %v", finished, version, kept, err)
			}
			if !kept {
				continue
			}
			said, _ := json.Marshal(endedBench{got, figures})
			if wanted, _ := json.Marshal(endedBench{b, f}); string(said) != string(wanted) {
				t.Errorf("it is kept as\n%s\nand was\n%s", said, wanted)
			}
		}
	}
}
