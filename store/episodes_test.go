package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// openEpisode records an episode with one call.
func openEpisode(t testing.TB, s *Store, text string) kw.Run {
	t.Helper()
	run := must(s.CreateRun(t.Context(), kw.Run{TaskName: "relu", Strategy: "rounds", Coder: "training:p", Status: kw.RunRunning},
		WithReference("class Model"), WithEpisode(Episode{Policy: "v1", Rule: "last"})))(t)
	ok(t, s.Append(t.Context(), llm.Record{
		Key: llm.Key{Run: run.ID, Agent: "coder"}, Model: "training:p", Request: llm.Request{Messages: []llm.Message{{Role: llm.User, Text: "write"}}},
		Reply: llm.Reply{Text: text, Stop: llm.StopEnd, PromptIDs: []int{1, 2}, TokenIDs: []int{3, 4, 5}, LogProbs: []float64{-1, -2, -3}},
	}))
	return run
}

func endEpisode(t testing.TB, s *Store, run kw.Run, status EpisodeStatus, reward *int, samples ...Sample) bool {
	t.Helper()
	run.Status, run.Reason = kw.RunDone, "why"
	return must(s.EndEpisode(t.Context(), Episode{Run: run.ID, Status: status, Reward: reward, Reason: "why"}, run, samples))(t)
}

func sampleRows(t *testing.T, s *Store, after int64, episodes int) (rows []SampleRow) {
	t.Helper()
	ok(t, s.Samples(t.Context(), after, episodes, func(r SampleRow) error { rows = append(rows, r); return nil }))
	return rows
}

func sound(t *testing.T, path string) {
	t.Helper()
	e, err := Examine(t.Context(), path, func(string) {})
	ok(t, err)
	if !e.Sound() {
		t.Errorf("%+v", e.Faults)
	}
}

func TestEpisodes(t *testing.T) {
	s := openTest(t)
	first, second, third := openEpisode(t, s, "one"), openEpisode(t, s, "two"), openEpisode(t, s, "three")
	two := 2
	mask := []int{1, 0, 1}
	if !endEpisode(t, s, second, EpisodeDone, &two, Sample{Context: "replace", Finish: "stop", Policy: "v2", Mask: mask}) {
		t.Error("it was not open")
	}
	if endEpisode(t, s, second, EpisodeExpired, nil) {
		t.Error("it was ended twice")
	}
	if !endEpisode(t, s, first, EpisodeDropped, nil, Sample{}) {
		t.Error("it was not open")
	}
	one := -1
	endEpisode(t, s, third, EpisodeDone, &one, Sample{Context: "replace", Finish: "length", Policy: "v1"})

	e := must(s.Episode(t.Context(), second.ID))(t)
	if e.Status != EpisodeDone || *e.Reward != 2 || e.Policy != "v1" || e.EndedMS == 0 {
		t.Errorf("%+v", e)
	}
	if e := must(s.Episode(t.Context(), first.ID))(t); e.Status != EpisodeDropped || e.Reward != nil || e.Reason != "why" {
		t.Errorf("%+v", e)
	}
	if _, err := s.Episode(t.Context(), 99); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	rows := sampleRows(t, s, 0, 10)
	if len(rows) != 2 || rows[0].Episode.Run != second.ID || rows[1].Episode.Run != third.ID {
		t.Fatalf("%+v", rows)
	}
	r := rows[0]
	if !slices.Equal(r.PromptIDs, []int{1, 2}) || !slices.Equal(r.TokenIDs, []int{3, 4, 5}) || !slices.Equal(r.LogProbs, []float64{-1, -2, -3}) ||
		!slices.Equal(r.Sample.Mask, mask) || r.Text != "two" || r.Messages[0].Text != "write" || r.Sample.Policy != "v2" || r.Place != 1 {
		t.Errorf("%+v", r)
	}
	if rows := sampleRows(t, s, 1, 10); len(rows) != 1 || rows[0].Place != 2 {
		t.Errorf("after the first: %+v", rows)
	}
	if rows := sampleRows(t, s, 0, 1); len(rows) != 1 {
		t.Errorf("one episode: %+v", rows)
	}
	sound(t, s.Path())
}

// What a process had open is lost with it; what was done is not.
func TestLoseEpisodes(t *testing.T) {
	s := openTest(t)
	open, done := openEpisode(t, s, "one"), openEpisode(t, s, "two")
	three := 3
	endEpisode(t, s, done, EpisodeDone, &three, Sample{Context: "replace", Finish: "stop", Policy: "v1"})
	for _, want := range []int64{1, 0} {
		if n := must(s.LoseEpisodes(t.Context()))(t); n != want {
			t.Errorf("%d were lost, want %d", n, want)
		}
	}
	if e := must(s.Episode(t.Context(), open.ID))(t); e.Status != EpisodeLost || e.Reward != nil {
		t.Errorf("%+v", e)
	}
	if r := must(s.Run(t.Context(), open.ID))(t); r.Status != kw.RunFailed || r.Reason == "" || r.FinishedMS == 0 {
		t.Errorf("%+v", r)
	}
	if e := must(s.Episode(t.Context(), done.ID))(t); e.Status != EpisodeDone {
		t.Errorf("%+v", e)
	}
	sound(t, s.Path())
}

// An episode of which something was lost is not trained on.
func TestSalvagedEpisodes(t *testing.T) {
	s := openTest(t)
	whole, torn := openEpisode(t, s, "one"), openEpisode(t, s, "two")
	two := 2
	endEpisode(t, s, whole, EpisodeDone, &two, Sample{Context: "replace", Finish: "stop", Policy: "v1", Mask: []int{1, 1, 1}})
	endEpisode(t, s, torn, EpisodeDone, &two, Sample{Context: "replace", Finish: "stop", Policy: "v1"})
	must(s.write.ExecContext(t.Context(), `DELETE FROM calls WHERE run = ?`, torn.ID))(t)
	e, err := Examine(t.Context(), s.Path(), func(string) {})
	ok(t, err)
	if e.Sound() {
		t.Error("a sample without its call is sound")
	}
	path := filepath.Join(t.TempDir(), FileName)
	out, err := Salvage(t.Context(), s.Path(), path, func(string) {})
	ok(t, err)
	if out.Kept["episodes"] != 2 || out.Kept["samples"] != 1 {
		t.Errorf("%+v", out)
	}
	mended, err := Open(path)
	ok(t, err)
	defer mended.Close()
	if rows := sampleRows(t, mended, 0, 10); len(rows) != 1 || rows[0].Episode.Run != whole.ID {
		t.Errorf("%+v", rows)
	}
	sound(t, path)
}

// Samples are found by the version of the policy that they are of, the best first.
func TestSamplesOfAVersion(t *testing.T) {
	s := openTest(t)
	var runs []int64
	for i, of := range []struct {
		policy string
		reward int
	}{{"p1-a-1-train-0", -1}, {"p1-a-1-train-0", 3}, {"p1-a-1-train-10", 1}, {"p1-a-10-train-0", 1}, {"p1-b-1-train-0", 1}} {
		run := openEpisode(t, s, fmt.Sprint("answer ", i))
		endEpisode(t, s, run, EpisodeDone, &of.reward, Sample{Context: "replace", Finish: "stop", Policy: of.policy})
		runs = append(runs, run.ID)
	}
	if found := must(s.SampledVersions(t.Context(), "p1-a-1-"))(t); !slices.Equal(found, []string{"p1-a-1-train-0", "p1-a-1-train-10"}) {
		t.Errorf("%q", found)
	}
	if found := must(s.SampledVersions(t.Context(), "p2-"))(t); len(found) != 0 {
		t.Errorf("%q", found)
	}
	of := must(s.Sampled(t.Context(), "p1-a-1-train-0"))(t)
	if of.Episodes != 2 || of.Mean == nil || *of.Mean != 1 || of.Rewards[3] != 1 || of.Rewards[-1] != 1 || of.Rewards[1] != 0 {
		t.Errorf("%+v", of)
	}
	var found []int64
	ok(t, s.SamplesOf(t.Context(), "p1-a-1-train-0", 0, 9, func(r SampleRow) error { found = append(found, r.Episode.Run); return nil }))
	if want := []int64{runs[1], runs[0]}; !slices.Equal(found, want) {
		t.Errorf("%v, not %v", found, want)
	}
	found = nil
	ok(t, s.SamplesOf(t.Context(), "p1-a-1-train-0", 1, 1, func(r SampleRow) error { found = append(found, r.Episode.Run); return nil }))
	if !slices.Equal(found, runs[:1]) {
		t.Errorf("the second: %v", found)
	}
}
