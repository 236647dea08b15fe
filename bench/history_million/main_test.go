package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/kernelwright/kernelwright/store"
)

// What is written in bulk is what the store would have written: it is sound,
// is read back as it was drawn, and may be continued.
func TestBulkIsHonest(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	s := settings{tasks: 5, perRun: 10, seed: 1}
	for _, s.rounds = range []int{50, 120} {
		db, err := store.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := fill(t.Context(), db, s); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	e, err := store.Examine(t.Context(), path, func(string) {})
	if err != nil || !e.Sound() || e.Rows["rounds"] != 120 {
		t.Fatalf("%+v, %v", e, err)
	}
	db, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	o, all, err := patterns()
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := saveTasks(t.Context(), db, s, o)
	if err != nil {
		t.Fatal(err)
	}
	for id := int64(1); id <= 12; id++ {
		d, err := draw(s, o, all, tasks, id)
		if err != nil {
			t.Fatal(err)
		}
		got, err := db.Rounds(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if (got[i].Certificate != nil) != (got[i].CertifiedMS > 0) {
				t.Errorf("run %d, round %d: a certificate has its time, and no other round", id, i)
			}
			got[i].CertifiedMS = 0 // by the clock, when it was recorded
		}
		want, err1 := json.Marshal(d.rounds)
		have, err2 := json.Marshal(got)
		if err1 != nil || err2 != nil || string(want) != string(have) {
			t.Errorf("run %d is not as it was drawn", id)
		}
		for i := range d.rounds { // recording the same again does nothing: the digests agree
			if err := db.AppendRound(t.Context(), d.rounds[i]); err != nil {
				t.Error(err)
			}
		}
	}
}
