package store

import (
	"errors"
	"testing"

	kw "github.com/kernelwright/kernelwright"
)

// enqueued queues a run of a file.
func enqueued(t *testing.T, s *Store, path, source string, priority int) kw.Run {
	t.Helper()
	return must(s.Enqueue(t.Context(), kw.Run{TaskName: path, Path: path, Strategy: "rounds", Settings: "{}"}, priority,
		WithReference(source), WithFile(File{Path: path, Hash: kw.HashText(source)})))(t)
}

func status(t *testing.T, s *Store, run int64) kw.RunStatus {
	t.Helper()
	return must(s.Run(t.Context(), run))(t).Status
}

// What is paused is claimed by nobody, in this process or after it; the whole queue too.
func TestPausedRunsAreLeftAlone(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	a, b := enqueued(t, s, "/a.py", "a", 5), enqueued(t, s, "/b.py", "b", 0)
	ok(t, s.Pause(ctx, a.ID))
	ok(t, s.Pause(ctx, a.ID))
	job, found, err := s.Claim(ctx, Self())
	if err != nil || !found || job.RunID != b.ID {
		t.Fatalf("%+v, %v, %v", job, found, err)
	}
	if waiting, claimed, err := s.QueueLength(ctx); waiting != 0 || claimed != 1 || err != nil {
		t.Errorf("%d wait, %d are claimed, %v", waiting, claimed, err)
	}
	ok(t, s.Pause(ctx, b.ID)) // its owner lets go of it
	ok(t, s.Return(ctx, job))
	if _, found, err := s.Claim(ctx, Self()); found || err != nil {
		t.Errorf("a paused run was claimed, %v", err)
	}
	ok(t, s.PauseQueue(ctx, true))
	ok(t, s.PauseQueue(ctx, true))
	ok(t, s.Resume(ctx, a.ID))
	ok(t, s.Resume(ctx, a.ID))
	if _, found, err := s.Claim(ctx, Self()); found || err != nil {
		t.Errorf("a run of a paused queue was claimed, %v", err)
	}
	if paused := must(s.QueuePaused(ctx))(t); !paused {
		t.Error("the queue is not paused")
	}
	q := must(s.Queue(ctx, Queued{}, 10))(t)
	if len(q) != 2 || q[0].Hold != "" || q[1].Hold != Paused {
		t.Errorf("%+v", q)
	}
	ok(t, s.PauseQueue(ctx, false))
	if job, found, err := s.Claim(ctx, Self()); !found || err != nil || job.RunID != a.ID {
		t.Errorf("%+v, %v", job, err)
	}
}

// A run that waits is cancelled at once, one that is claimed when its owner lets go of
// it, or is dead.
func TestCancelledRunsEnd(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	var runs []kw.Run
	for _, path := range []string{"/a.py", "/b.py", "/c.py", "/d.py"} {
		runs = append(runs, enqueued(t, s, path, path, 0))
	}
	var jobs []Job
	for range 3 {
		job, _, err := s.Claim(ctx, Self())
		ok(t, err)
		jobs = append(jobs, job)
	}
	for _, r := range runs {
		ok(t, s.Cancel(ctx, r.ID))
		ok(t, s.Cancel(ctx, r.ID))
	}
	if is := status(t, s, runs[3].ID); is != kw.RunCancelled {
		t.Errorf("one that waited is %s", is)
	}
	if is := status(t, s, runs[0].ID); is != kw.RunRunning {
		t.Errorf("one that is claimed is %s", is)
	}
	if held := must(s.Wanted(ctx, runs[0].ID))(t); held != Cancelled {
		t.Errorf("its owner is told %q", held)
	}
	var state *StateError
	if err := s.Pause(ctx, runs[0].ID); !errors.As(err, &state) || state.Hint == "" {
		t.Errorf("what is cancelled is paused: %v", err)
	}
	ok(t, s.Return(ctx, jobs[0]))
	runs[1].Status = kw.RunDone // it came to its end before its owner was told
	ok(t, s.Finish(ctx, jobs[1], runs[1]))
	must(s.Recover(ctx, func(string) bool { return false }))(t)
	for i, want := range []kw.RunStatus{kw.RunCancelled, kw.RunDone, kw.RunCancelled} {
		if is := status(t, s, runs[i].ID); is != want {
			t.Errorf("run %d is %s, want %s", i, is, want)
		}
	}
	if q := must(s.Queue(ctx, Queued{}, 10))(t); len(q) != 0 {
		t.Errorf("left in the queue: %+v", q)
	}
	ok(t, s.Close())
	if e := examine(t, s.Path()); !e.Sound() {
		t.Errorf("%+v", e.Faults)
	}
}

// A run that has ended is queued once more, once; what is of no queue is not.
func TestRequeue(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	old := enqueued(t, s, "/a.py", "text", 3)
	if same, fresh, err := s.Requeue(ctx, old.ID, 0); err != nil || fresh || same.ID != old.ID {
		t.Errorf("one that waits: %d, %v, %v", same.ID, fresh, err)
	}
	ok(t, s.Cancel(ctx, old.ID))
	again, fresh, err := s.Requeue(ctx, old.ID, 2)
	if err != nil || !fresh || again.ID == old.ID || again.Path != "/a.py" || again.Settings != "{}" {
		t.Fatalf("%+v, %v, %v", again, fresh, err)
	}
	if same, fresh, err := s.Requeue(ctx, old.ID, 2); err != nil || fresh || same.ID != again.ID {
		t.Errorf("a second time: %d, %v, %v", same.ID, fresh, err)
	}
	if f, _, err := s.File(ctx, "/a.py"); err != nil || f.RunID != again.ID {
		t.Errorf("%+v, %v", f, err)
	}
	if text, kept, err := s.Reference(ctx, again.ID); text != "text" || !kept || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if q := must(s.Queue(ctx, Queued{}, 10))(t); len(q) != 1 || q[0].Priority != 2 {
		t.Errorf("%+v", q)
	}
	ok(t, s.SetPriority(ctx, again.ID, -4))
	if q := must(s.Queue(ctx, Queued{}, 10))(t); q[0].Priority != -4 {
		t.Errorf("%+v", q)
	}
	var state *StateError
	typed := must(s.CreateRun(ctx, kw.Run{Path: "/b.py", Status: kw.RunRunning}))(t)
	for name, err := range map[string]error{
		"retry of a command's run": func() error { _, _, err := s.Requeue(ctx, typed.ID, 0); return err }(),
		"cancel of a command's":    s.Cancel(ctx, typed.ID),
		"priority of an ended one": s.SetPriority(ctx, old.ID, 1),
		"pause of an ended one":    s.Pause(ctx, old.ID),
	} {
		if !errors.As(err, &state) || state.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{"cancel": s.Cancel(ctx, 99), "resume": s.Resume(ctx, 99), "retry": func() error { _, _, err := s.Requeue(ctx, 99, 0); return err }()} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s of no run: %v", name, err)
		}
	}
}

// What is offered works, and what is not is refused.
func TestOffers(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	waits, ended := enqueued(t, s, "/a.py", "text", 0), enqueued(t, s, "/b.py", "text", 0)
	ok(t, s.Cancel(ctx, ended.ID))
	typed := must(s.CreateRun(ctx, kw.Run{Path: "/c.py", Status: kw.RunRunning}))(t)
	done := must(s.CreateRun(ctx, kw.Run{Path: "/d.py", Status: kw.RunDone}))(t)
	check := func(run int64, want Offers) {
		t.Helper()
		if found := must(s.Offers(ctx, run))(t); found != want {
			t.Errorf("run %d: %+v, not %+v", run, found, want)
		}
	}
	check(waits.ID, Offers{Cancel: true, Pause: true})
	check(ended.ID, Offers{Retry: true})
	check(typed.ID, Offers{})
	check(done.ID, Offers{})
	ok(t, s.Pause(ctx, waits.ID))
	check(waits.ID, Offers{Cancel: true, Resume: true})
	ok(t, s.Resume(ctx, waits.ID))
	if _, err := s.write.ExecContext(ctx, `UPDATE queue SET state = 'claimed' WHERE run = ?`, waits.ID); err != nil {
		t.Fatal(err)
	}
	ok(t, s.Cancel(ctx, waits.ID))
	check(waits.ID, Offers{})
	if _, err := s.Offers(ctx, 99); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}
