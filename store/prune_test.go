package store

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// aged records a run that ended at a time (Unix milliseconds) with two rounds; of a
// certified one the second is.
func aged(t *testing.T, s *Store, coder string, ended int64, certified bool) kw.Run {
	t.Helper()
	ctx := t.Context()
	run := must(s.CreateRun(ctx, kw.Run{Task: "f", TaskName: "softmax", Device: "cpu", DeviceKey: "d", Coder: coder}))(t)
	for i, status := range []kw.Status{kw.Wrong, kw.Correct} {
		r := round(run.ID, i, status, float64(2*i))
		r.Candidate.Source += strings.Repeat(" and more of run", 100)
		ok(t, s.AppendRound(ctx, r))
		ok(t, s.Append(ctx, llm.Record{
			Key: llm.Key{Run: run.ID, Round: i, Agent: "coder"}, Model: "p:m",
			Request: llm.Request{Messages: []llm.Message{say(llm.System, strings.Repeat("the same for all ", 100)), say(llm.User, fmt.Sprint(run.ID, i, strings.Repeat(" a question", 100)))}},
			Reply:   llm.Reply{Text: fmt.Sprint(run.ID, i, strings.Repeat(" an answer", 100)), Reasoning: fmt.Sprint(run.ID, i, strings.Repeat(" a thought", 100), fmt.Sprint(" onlyin", run.ID))},
		}))
	}
	if certified {
		file := fmt.Sprintf("# file of %d %s", run.ID, strings.Repeat("x", 2000))
		ok(t, s.SetCertificate(ctx, run.ID, 1, kw.Verdict{Status: kw.Certified, CandidateMS: 2, Exported: file, ExportedSHA256: kw.HashText(file)}))
	}
	run.Status, run.FinishedMS = kw.RunDone, ended
	ok(t, s.UpdateRun(ctx, run))
	return run
}

func TestPruneKeepsWhatIsInUse(t *testing.T) {
	s := openTest(t)
	ctx := t.Context()
	old, young := aged(t, s, "builtin", 10, false), aged(t, s, "builtin", 1000, false)
	kernel, trained := aged(t, s, "builtin", 10, true), aged(t, s, "p:m", 10, true)
	two := 2
	episode := openEpisode(t, s, "a long answer "+strings.Repeat("y", 1000))
	endEpisode(t, s, episode, EpisodeDone, &two, Sample{Context: "append", Finish: "stop", Policy: "v1"})
	ok(t, s.SaveBaseline(ctx, Baseline{NamedBaseline: kw.NamedBaseline{Name: "mine", Source: must(s.Rounds(ctx, old.ID))(t)[0].Candidate.Source}, Task: "f", Device: kw.CPUDevice}))
	policy := Retention{Before: time.UnixMilli(100), LeastBytes: 500}
	dry := must(s.Prunable(ctx, policy))(t)
	before := asJSON(t, []any{must(s.Rounds(ctx, young.ID))(t), must(s.Rounds(ctx, trained.ID))(t), must(s.Calls(ctx, trained.ID))(t), must(s.Calls(ctx, young.ID))(t)})
	found := len(must(s.Find(ctx, Query{Words: "question"}))(t))
	got := must(s.Prune(ctx, policy, func(int64) {}))(t)
	if got != dry || got.Runs != 2 || got.Texts == 0 || got.Bytes == 0 {
		t.Errorf("dry %+v, then %+v", dry, got)
	}
	if after := asJSON(t, []any{must(s.Rounds(ctx, young.ID))(t), must(s.Rounds(ctx, trained.ID))(t), must(s.Calls(ctx, trained.ID))(t), must(s.Calls(ctx, young.ID))(t)}); after != before {
		t.Error("what is in use has changed")
	}
	rounds := must(s.Rounds(ctx, old.ID))(t)
	if rounds[0].Candidate.Source == PrunedText {
		t.Error("a baseline's text is gone")
	}
	if rounds[1].Candidate.Source == PrunedText {
		t.Error("the best round's text is gone")
	}
	calls := must(s.Calls(ctx, old.ID))(t)
	if calls[0].Reply.Text != PrunedText || calls[0].Reply.Reasoning != PrunedText || calls[0].Request.Messages[1].Text != PrunedText || calls[0].Request.Messages[0].Text == PrunedText {
		t.Errorf("%+v", calls[0])
	}
	certified := must(s.Rounds(ctx, kernel.ID))(t)
	if certified[0].Candidate.Source != PrunedText || certified[1].Candidate.Source == PrunedText || certified[1].Certificate == nil || !strings.HasPrefix(certified[1].Certificate.Exported, "# file of") {
		t.Errorf("%+v", certified)
	}
	if now := len(must(s.Find(ctx, Query{Words: "question"}))(t)); now >= found {
		t.Errorf("search finds %d, before %d", now, found)
	}
	if again := must(s.Prune(ctx, policy, func(int64) {}))(t); again.Texts != 0 {
		t.Errorf("again: %+v", again)
	}
	z := must(s.Sizes(ctx))(t)
	if z.Pruned != got.Texts || z.PrunedBy != got.Bytes || z.Packed >= z.Whole {
		t.Errorf("%+v", z)
	}
	if e := examine(t, s.Path()); !e.Sound() || e.Rows["prunings"] != got.Texts {
		t.Errorf("%+v", e.Faults)
	}
	// What is said again is there again.
	text := fmt.Sprint(old.ID, 0, strings.Repeat(" an answer", 100))
	ok(t, s.inTx(ctx, func(tx *sql.Tx) error { _, err := s.putText(ctx, tx, text, text); return err }))
	if calls = must(s.Calls(ctx, old.ID))(t); calls[0].Reply.Text != text {
		t.Errorf("%+v", calls[0].Reply)
	}
	ok(t, s.Compact(ctx))
	if e := examine(t, s.Path()); !e.Sound() {
		t.Errorf("%+v", e.Faults)
	}
	for id, want := range map[int64]int{old.ID: 0, young.ID: 1} { // the words of what was pruned
		if words := must(s.wordsWith(ctx, fmt.Sprint("onlyin", id)))(t); len(words) != want {
			t.Errorf("run %d: %v", id, words)
		}
	}
	salvaged := must(Salvage(ctx, s.Path(), t.TempDir()+"/copy.db", func(string) {}))(t)
	for table, n := range salvaged.Lost {
		if n > 0 {
			t.Errorf("lost of %s: %d", table, n)
		}
	}
	if e := examine(t, salvaged.Path); !e.Sound() || e.Rows["prunings"] != got.Texts-1 {
		t.Errorf("%+v %v", e.Faults, e.Rows)
	}
}

// A text whose content is gone without a record of it is damaged, and so is one whose
// record was made by somebody else.
func TestATextThatIsGoneIsNotPruned(t *testing.T) {
	s := openTest(t)
	run := must(s.CreateRun(t.Context(), kw.Run{Task: "f", DeviceKey: "d", Status: kw.RunFailed}))(t)
	ok(t, s.AppendRound(t.Context(), round(run.ID, 0, kw.Wrong, 0)))
	path := s.Path()
	ok(t, s.Close())
	db := must(sql.Open("sqlite", dsn(path, probePragmas)))(t)
	defer db.Close()
	_, err := db.Exec(`UPDATE texts SET body = x'' WHERE id = (SELECT candidate FROM rounds)`)
	ok(t, err)
	if e := examine(t, path); len(e.Faults) != 1 || e.Faults[0].What != "texts are damaged" {
		t.Errorf("%+v", e.Faults)
	}
	_, err = db.Exec(`INSERT INTO prunings (text, bytes, at, row_digest) SELECT candidate, 1, 1, x'00' FROM rounds`)
	ok(t, err)
	if e := examine(t, path); len(e.Faults) != 2 {
		t.Errorf("%+v", e.Faults)
	}
}
