package store

import (
	"errors"
	"path/filepath"
	"testing"

	kw "github.com/kernelwright/kernelwright"
)

func audited(candidate, key string, v kw.Verdict) kw.AuditPair {
	return kw.AuditPair{Reference: "/set/ref.py", Candidate: candidate, Key: key, Verdict: v, ReferenceText: "class Model:", CandidateText: "class ModelNew: # " + key}
}

func pairsOf(t *testing.T, s *Store, audit int64) (names []string, statuses []kw.Status) {
	t.Helper()
	ok(t, s.AuditPairs(t.Context(), audit, func(p kw.AuditPair) error {
		names, statuses = append(names, p.Candidate), append(statuses, p.Verdict.Status)
		return nil
	}))
	return names, statuses
}

func TestAuditsAndTheirPairs(t *testing.T) {
	s := must(Open(filepath.Join(t.TempDir(), FileName)))(t)
	defer s.Close()
	ctx := t.Context()
	set := kw.Audit{Path: "/set", DeviceClass: "d", Baselines: []string{"eager"}, CustomCode: "any"}
	_, err := s.LatestAudit(ctx, set.Key())
	if !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	first := must(s.CreateAudit(ctx, set))(t)
	if got := must(s.LatestAudit(ctx, set.Key()))(t); asJSON(t, got) != asJSON(t, first) {
		t.Errorf("%+v, want %+v", got, first)
	}
	strict := set
	strict.CustomCode = "required"
	if strict.Key() == set.Key() || strict.PairKey("a", "b") == set.PairKey("a", "b") {
		t.Error("policy makes no other audit")
	}
	if elsewhere := (kw.Audit{Path: "/other", DeviceClass: "d", Baselines: []string{"eager"}, CustomCode: "any"}); elsewhere.PairKey("a", "b") != set.PairKey("a", "b") {
		t.Error("where a pair lies makes another pair")
	}

	right := kw.Verdict{Status: kw.Correct, CandidateMS: 1, Speedup: &kw.Speedup{Value: 2, Low: 1.9, High: 2.1, Against: "eager"}}
	p := audited("/set/a.py", "a", right)
	p.Claim, p.Index = &kw.Claim{Speedup: 3, Against: "eager"}, 1
	ok(t, s.KeepAudited(ctx, first.ID, 1, p))
	ok(t, s.KeepAudited(ctx, first.ID, 1, audited("/set/gone.py", "gone", kw.Verdict{Status: kw.Wrong})))
	v, judged, found, err := s.Audited(ctx, "a", 0)
	if err != nil || !found || asJSON(t, v) != asJSON(t, right) || judged == 0 {
		t.Errorf("%+v %d %v %v", v, judged, found, err)
	}
	// What was evaluated before a time does not count since then.
	if _, _, found, err = s.Audited(ctx, "a", judged+1); found || err != nil {
		t.Error(found, err)
	}
	if _, _, found, err = s.Audited(ctx, "b", 0); found || err != nil {
		t.Error(found, err)
	}

	one, err := s.AuditPair(ctx, first.ID, 1)
	if err != nil || one.Candidate != p.Candidate || one.Claim.Speedup != 3 || asJSON(t, one.Verdict) != asJSON(t, right) {
		t.Errorf("%+v %v", one, err)
	}
	if _, err := s.AuditPair(ctx, first.ID, 9); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}

	// The second pass sees another set: one pair has gone, one has other bytes.
	p.Key, p.Verdict = "a2", kw.Verdict{Status: kw.Crashed}
	ok(t, s.KeepAudited(ctx, first.ID, 2, p))
	names, statuses := pairsOf(t, s, first.ID)
	if len(names) != 2 || names[0] != "/set/gone.py" || statuses[1] != kw.Crashed {
		t.Errorf("%v %v", names, statuses)
	}
	ok(t, s.FinishAudit(ctx, first.ID, 2))
	if names, _ = pairsOf(t, s, first.ID); len(names) != 1 || names[0] != "/set/a.py" {
		t.Errorf("%v", names)
	}
	audits, pairs, err := s.Audits(ctx, Page{Limit: 5})
	if err != nil || len(audits) != 1 || audits[0].FinishedMS == 0 || pairs[0] != 1 {
		t.Errorf("%+v %v %v", audits, pairs, err)
	}
	if err := s.FinishAudit(ctx, 99, 1); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	// Search is of runs: a set of thousands must not fill its answers.
	if hits := must(s.Search(ctx, "ModelNew", 0))(t); len(hits) != 0 {
		t.Errorf("%+v", hits)
	}
}
