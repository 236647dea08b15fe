package store

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
)

func placed(int64) error { return nil }

func promote(policy, gate int64) func([]Promotion) (Promotion, bool, error) {
	return func([]Promotion) (Promotion, bool, error) {
		return Promotion{Policy: policy, Gate: gate, Reason: "why"}, true, nil
	}
}

// A version is of one content: recorded again it is the same, a removed one too. What
// cannot be placed is not recorded.
func TestPolicies(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	s := must(Open(path))(t)
	ctx := t.Context()
	full := errors.New("the disk is full")
	if _, err := s.SavePolicy(ctx, Policy{Digest: "a", Files: []byte("[]")}, func(int64) error { return full }); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	if all := must(s.Policies(ctx, Page{Oldest: true}))(t); len(all) != 0 {
		t.Errorf("recorded: %+v", all)
	}
	first := must(s.SavePolicy(ctx, Policy{Digest: "a", Base: "smollm2", License: "apache-2.0", Pipeline: 2, Stage: "agentic", Bytes: 7, Files: []byte(`["x"]`)}, placed))(t)
	second := must(s.SavePolicy(ctx, Policy{Digest: "b", Files: []byte("[]")}, placed))(t)
	if again := must(s.SavePolicy(ctx, Policy{Digest: "a", Base: "other", Files: []byte("[]")}, placed))(t); again.Version != first.Version || again.Base != "smollm2" || string(again.Files) != `["x"]` {
		t.Errorf("recorded anew: %+v", again)
	}
	ok(t, s.Promote(ctx, promote(second.Version, 0)))
	var serves *ServesError
	if err := s.RemovePolicy(ctx, second.Version); !errors.As(err, &serves) {
		t.Errorf("what serves was removed: %v", err)
	}
	ok(t, s.RemovePolicy(ctx, first.Version))
	for _, err := range []error{s.RemovePolicy(ctx, first.Version), s.RemovePolicy(ctx, 99), s.Promote(ctx, promote(first.Version, 0)), s.Promote(ctx, promote(99, 0))} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("got %v", err)
		}
	}
	if p := must(s.Policy(ctx, first.Version))(t); p.RemovedMS == 0 {
		t.Errorf("%+v", p)
	}
	back := must(s.SavePolicy(ctx, Policy{Digest: "a", Files: []byte("[]")}, placed))(t)
	if back.Version != first.Version || back.RemovedMS != 0 {
		t.Errorf("%+v", back)
	}
	ok(t, s.Promote(ctx, promote(first.Version, 4)))
	if err := s.Promote(ctx, promote(second.Version, 4)); err == nil {
		t.Error("a gate promoted twice")
	}
	if all := must(s.Promotions(ctx))(t); len(all) != 2 || all[1].Policy != first.Version || all[1].Gate != 4 || all[1].CreatedMS == 0 {
		t.Errorf("%+v", all)
	}
	sound(t, path)
	_, err := s.write.Exec(`UPDATE policies SET removed = 5 WHERE version = ?`, first.Version)
	ok(t, err)
	ok(t, s.Close())
	if e := examine(t, path); !slices.ContainsFunc(e.Faults, func(f Fault) bool { return f.What == "a policy serves that was removed" }) {
		t.Errorf("%+v", e.Faults)
	}
}
