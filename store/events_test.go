package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
)

// All that happens to a run is told in its order, with numbers that only grow, whatever
// process asks; the texts of candidates and models among it are JSON.
func TestEvents(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	run := enqueued(t, s, "/a.py", "a", 0)
	job, _, err := s.Claim(ctx, Self())
	ok(t, err)
	for i, v := range []kw.Verdict{
		{Status: kw.Wrong, Reason: "\x00\x1b\"\xff" + strings.Repeat("ü", 600)},
		{Status: kw.Correct, CandidateMS: 2, Speedup: &kw.Speedup{Value: 1.5, Low: 1, High: 2, Against: "eager"}}, {Status: kw.Correct, CandidateMS: 3},
	} {
		ok(t, s.AppendRound(ctx, kw.Round{RunID: run.ID, Index: i, Candidate: kw.Candidate{Source: fmt.Sprint(i), Language: kw.CPP}, Verdict: v}))
	}
	ok(t, s.SetCertificate(ctx, run.ID, 1, kw.Verdict{Status: kw.Certified, CandidateMS: 1}))
	ok(t, s.Pause(ctx, run.ID))
	ok(t, s.SetPriority(ctx, run.ID, 4))
	ok(t, s.Resume(ctx, run.ID))
	ok(t, s.PauseQueue(ctx, true))
	ok(t, s.PauseQueue(ctx, false))
	run.Status, run.Stop = kw.RunDone, kw.StopRounds
	ok(t, s.Finish(ctx, job, run))
	ok(t, s.UpdateRun(ctx, run)) // nothing new
	var got []string
	last := int64(0)
	for _, e := range must(s.Events(ctx, 0, 0, nil, 100))(t) {
		var d map[string]any
		if err := json.Unmarshal(e.Detail, &d); err != nil {
			t.Fatalf("%s: %v", e.Detail, err)
		}
		if e.ID <= last || e.AtMS == 0 || len(e.Detail) > 2000 || d["run"] != nil && int64(d["run"].(float64)) != e.Run {
			t.Errorf("%+v", e)
		}
		last = e.ID
		word := ""
		for _, key := range []string{"status", "state", "hold", "paused", "best", "priority"} {
			if v, there := d[key]; there && v != nil && (key != "priority" || v != 0.) {
				word += fmt.Sprint(" ", v)
			}
		}
		got = append(got, e.Kind+word)
	}
	want := []string{
		"run queued", "queue waiting", "queue claimed", "run running", "round wrong false", "round correct true", "round correct false", "certificate certified",
		"queue claimed paused", "queue claimed paused 4", "queue claimed 4", "queue true", "queue false", "run done 1", "queue gone 4",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if some := must(s.Events(ctx, 0, run.ID, []string{EventRound, EventRun}, 4))(t); len(some) != 4 || some[3].Kind != EventRound {
		t.Errorf("%+v", some)
	}
	if rest := must(s.Events(ctx, last-1, 0, nil, 10))(t); len(rest) != 1 || rest[0].ID != last {
		t.Errorf("%+v", rest)
	}
	if oldest, newest, err := s.EventBounds(ctx); oldest != 1 || newest != last || err != nil {
		t.Errorf("%d to %d, %v", oldest, newest, err)
	}
}

// Only the last ones are kept, and numbers are not given out again.
func TestOldEventsAreDropped(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	must(s.write.Exec(`INSERT INTO events (id, at, kind, run, detail) VALUES (?, 1, 'run', NULL, '{}'), (?, 1, 'run', NULL, '{}')`, 1, KeptEvents))(t)
	ok(t, s.PauseQueue(ctx, true))
	if oldest, newest, err := s.EventBounds(ctx); oldest != KeptEvents || newest != KeptEvents+1 || err != nil {
		t.Errorf("%d to %d, %v", oldest, newest, err)
	}
}
