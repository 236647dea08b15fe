package store

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	kw "github.com/kernelwright/kernelwright"
)

// A verdict that came as JSON is recorded and read back the same, or refused.
func FuzzVerdict(f *testing.F) {
	f.Add([]byte(`{"status":"certified","candidate_ms":0.5,"exported":"import torch","metrics":{"a":1e300},"baselines":{"eager":1}}`))
	f.Add([]byte(`{"status":"correct","speedup":{"value":-1e308,"low":0,"high":1e-320},"evidence":["\u0000\ud800",""],"output":"\u001b[2J"}`))
	f.Add([]byte(`{"metrics":{"":0,"\u0000":1},"build":{"errors":[{"line":-9,"message":"x"}]}}`))
	s := openTest(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		var v kw.Verdict
		if json.Unmarshal(b, &v) != nil {
			return
		}
		// As the evaluator leaves it: by its hash the JSON says which file it is for.
		v.ExportedSHA256 = ""
		if v.Exported != "" {
			v.ExportedSHA256 = kw.HashText(v.Exported)
		}
		run := newRun(t, s)
		r := round(run.ID, 0, kw.Correct, 1)
		r.Verdict = v
		ok(t, s.AppendRound(t.Context(), r))
		ok(t, s.AppendRound(t.Context(), r)) // again is fine
		ok(t, s.SetCertificate(t.Context(), run.ID, 0, v))
		got := must(s.Rounds(t.Context(), run.ID))(t)
		if len(got) != 1 || got[0].Certificate == nil {
			t.Fatalf("%d rounds", len(got))
		}
		want := asJSON(t, v)
		if a, b := asJSON(t, got[0].Verdict), asJSON(t, got[0].Certificate); a != want || b != want {
			t.Fatalf("%s came back as %s and %s", want, a, b)
		}
	})
}

// A database with damaged bytes gives what was recorded, or an error; never
// something else, and opening it in vain changes nothing.
func FuzzDamagedDatabase(f *testing.F) {
	good := filepath.Join(f.TempDir(), FileName)
	s, err := Open(good)
	ok(f, err)
	run := newRun(f, s)
	for i := range 12 {
		ok(f, s.AppendRound(f.Context(), round(run.ID, i, kw.Correct, 1)))
	}
	ok(f, s.Put(f.Context(), "kind", "key", []byte("value")))
	want := must(s.Rounds(f.Context(), run.ID))(f)
	ok(f, s.Close())
	whole, err := os.ReadFile(good)
	ok(f, err)
	f.Add(uint32(0), []byte{1})
	f.Add(uint32(18), []byte{9, 9})
	f.Add(uint32(24), []byte{0xff, 0xff, 0xff, 0xff})
	f.Add(uint32(4096), []byte{0x0d, 0, 0, 0xff, 0xff})
	f.Add(uint32(len(whole)/2), []byte{0xa5, 0xa5, 0xa5})
	f.Add(uint32(len(whole)-40), []byte("xxxxxxxxxxxx"))
	path := filepath.Join(f.TempDir(), FileName)
	f.Fuzz(func(t *testing.T, at uint32, patch []byte) {
		content := slices.Clone(whole)
		copy(content[int(at)%len(content):], patch)
		for _, suffix := range []string{"-wal", "-shm"} {
			_ = os.Remove(path + suffix) // of the last one
		}
		ok(t, os.WriteFile(path, content, 0o600))
		s, err := Open(path)
		if err != nil {
			if after, err := os.ReadFile(path); err != nil || !slices.Equal(after, content) {
				t.Fatalf("the file was changed: %v", err)
			}
			return
		}
		defer s.Close()
		got, err := s.Rounds(t.Context(), run.ID)
		if err == nil && asJSON(t, got) != asJSON(t, want) && s.Check(t.Context()) == nil {
			t.Fatalf("bytes %q at %d passed the check, and gave %s", patch, at, asJSON(t, got))
		}
		if value, found, err := s.Get(t.Context(), "kind", "key"); err == nil && found && string(value) != "value" && s.Check(t.Context()) == nil {
			t.Fatalf("the cache gave %q", value)
		}
		_, _ = s.Best(t.Context(), "f", kw.HashText("x"), "d") // must not panic
		_, _ = s.Search(t.Context(), "ModelNew", 3)
		_, err = Examine(t.Context(), path, quiet)
		ok(t, err)
		salvaged := filepath.Join(t.TempDir(), FileName)
		_, err = Salvage(t.Context(), path, salvaged, quiet)
		ok(t, err)
		if e := examine(t, salvaged); !e.Sound() {
			t.Fatalf("bytes %q at %d: salvaged, and %+v", patch, at, e.Faults)
		}
	})
}
