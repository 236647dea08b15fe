package episodes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/internal/await"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// An episode of one call, to its end, in the record, and posted again.
func TestOneCall(t *testing.T) {
	w := newWorld(t)
	a := w.start(map[string]any{"policy_version": "name-11", "strategy": "rounds"})
	if a.ID == 0 || a.Done || a.Call != 0 || a.Context != "replace" || len(a.Messages) != 2 || a.Messages[0].Role != "system" || !strings.Contains(a.Messages[1].Content, "class Model: pass") {
		t.Fatalf("%+v", a)
	}
	turn := text("faster")
	turn["call"], turn["prompt_ids"], turn["token_ids"], turn["logprobs"], turn["mask"] = 0, []int{1, 2}, []int{3, 4}, []float64{-0.5, -1}, []int{1, 0}
	turn["finish_reason"], turn["policy_version"] = "stop", "name-12"
	b := w.turn(a.ID, turn)
	if !b.Done || b.Status != store.EpisodeDone || *b.Reward != 2 || b.Verdict.Status != kw.Correct || b.Call != 1 || b.Rounds != 1 || b.Stop != "rounds" {
		t.Fatalf("%+v", b)
	}
	if again := w.turn(a.ID, turn); *again.Reward != 2 || again.Verdict == nil {
		t.Errorf("posted again: %+v", again)
	}
	if n := w.hardware.evaluated; len(n) != 1 {
		t.Errorf("evaluated: %v", n)
	}
	if code, got := w.call("POST", fmt.Sprintf("/v1/episodes/%d/turns", a.ID), text("other")); code != http.StatusConflict {
		t.Errorf("%d %v", code, got)
	}
	if got := w.must("GET", fmt.Sprintf("/v1/episodes/%d", a.ID), nil); *got.Reward != 2 {
		t.Errorf("%+v", got)
	}

	run, err := w.store.Run(t.Context(), a.ID)
	if err != nil || run.Coder != "training:name-11" || run.Status != kw.RunDone || run.Stop != "rounds" || run.Task == "" || run.FinishedMS == 0 {
		t.Errorf("%+v, %v", run, err)
	}
	calls, err := w.store.Calls(t.Context(), a.ID)
	if err != nil || len(calls) != 1 || !slices.Equal(calls[0].Reply.TokenIDs, []int{3, 4}) || *calls[0].CostUSD != 0 || calls[0].Request.Fit == nil || !calls[0].Request.Fit.Compact {
		t.Errorf("%+v, %v", calls, err)
	}
	if talk := report.Talk(calls, nil); len(talk) != 3 || talk[2].Model != "training:name-11" {
		t.Errorf("%+v", talk)
	}
	s := w.samples("")
	want := Sample{
		Place: 1, Episode: a.ID, Task: run.Task, Context: "replace", PromptIDs: []int{1, 2}, ResponseIDs: []int{3, 4}, ResponseMask: []int{1, 0},
		LogProbs: []float64{-0.5, -1}, Reward: b.Reward, Finish: "stop", Policy: "name-12",
	}
	if len(s) != 1 || asJSON(t, s[0]) != asJSON(t, want) {
		t.Errorf("%+v", s)
	}
	if s := w.samples("?texts=1"); s[0].Text != file("faster") || len(s[0].Messages) != 2 {
		t.Errorf("%+v", s)
	}
	if s := w.samples("?after=1"); len(s) != 0 {
		t.Errorf("%+v", s)
	}
	stats := w.episodes.Stats()
	if stats.Done != 1 || stats.Rewards[2] != 1 || stats.Open != 0 || stats.Turns != 1 || stats.Verdicts.Measured != 1 {
		t.Errorf("%+v", stats)
	}
	if !w.strict[Conditions{StrictInputs: true}] || len(w.strict) != 1 {
		t.Errorf("asked for %v", w.strict)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (w *world) samples(query string) (all []Sample) {
	w.t.Helper()
	code, body, err := w.try("GET", "/v1/samples"+query, nil)
	if err != nil || code != 200 {
		w.t.Fatalf("%d %s %v", code, body, err)
	}
	for lines := json.NewDecoder(bytes.NewReader(body)); lines.More(); {
		var s Sample
		if err := lines.Decode(&s); err != nil {
			w.t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// What the policy leaves counts, or the best that it reached.
func TestRules(t *testing.T) {
	w := newWorld(t)
	for rule, want := range map[string]int{"last": -1, "best": 3, "": -1} {
		a := w.start(map[string]any{"rounds": 3, "judge": "none", "reward": rule, "strict_inputs": false})
		for i, words := range []string{"plain", "fastest", "wrong"} {
			if a.Done || a.Call != i || a.Context != "replace" {
				t.Fatalf("%+v", a)
			}
			a = w.turn(a.ID, text(words+rule))
		}
		if !a.Done || *a.Reward != want || a.Rounds != 3 || a.Verdict.Status.OK() != (want == 3) {
			t.Errorf("%s: %+v", rule, a)
		}
	}
	if !w.strict[Conditions{Profile: true}] || len(w.strict) != 1 {
		t.Errorf("asked for %v", w.strict)
	}
	// An answer that holds no candidate is what the policy left, too.
	a := w.start(nil)
	if a = w.turn(a.ID, map[string]any{"text": ""}); *a.Reward != -1 || a.Verdict.Status != kw.Rejected || !a.Invalid {
		t.Errorf("%+v", a)
	}
}

// Hundreds at once: each gets its own reward, and the device evaluates no text twice.
func TestHundreds(t *testing.T) {
	const episodes, rounds, texts = 250, 2, 30
	w := newWorld(t, func(o *Options) { o.Settings.Patience = 0 })
	kinds := []string{"wrong", "plain", "faster", "fastest"}
	var all sync.WaitGroup
	for i := range episodes {
		all.Go(func() {
			a := w.start(map[string]any{"rounds": rounds, "judge": "none", "reference": fmt.Sprintf("class Model: pass # %d", i%4), "seed": i})
			for turn := range rounds {
				a = w.turn(a.ID, map[string]any{"call": turn, "text": file(fmt.Sprint(kinds[(i+turn)%4], (i+turn)%texts)), "token_ids": []int{i, turn}})
			}
			want := []int{-1, 1, 2, 3}[(i+rounds-1)%4]
			if !a.Done || a.Reward == nil || *a.Reward != want {
				t.Errorf("episode %d: %+v, want %d", i, a, want)
			}
		})
	}
	all.Wait()
	s := w.episodes.Stats()
	if s.Done != episodes || s.Turns != episodes*rounds || s.Open != 0 {
		t.Errorf("%+v", s)
	}
	// In one episode the loop itself knows what repeats; texts differ by task here.
	if v := s.Verdicts; v.Measured > 4*texts || v.Asked != v.Measured+v.Cached+v.Joined || v.HitRate < 0.5 || v.Batches > v.Measured {
		t.Errorf("%+v", v)
	}
	ids := map[int64]int{}
	for _, sample := range w.samples("") {
		if (sample.Reward != nil) != (sample.Call == rounds-1) {
			t.Fatalf("%+v", sample)
		}
		if sample.Call != ids[sample.Episode] || len(sample.ResponseIDs) != 2 || sample.ResponseIDs[1] != sample.Call {
			t.Fatalf("%+v", sample)
		}
		ids[sample.Episode]++
	}
	if len(ids) != episodes {
		t.Errorf("samples of %d episodes", len(ids))
	}
}

// An error of the machinery drops the episode: it is never scored, and others go on.
func TestDropped(t *testing.T) {
	w := newWorld(t)
	a, other := w.start(nil), w.start(nil)
	b := w.turn(a.ID, text("breaks the machine"))
	if !b.Done || b.Status != store.EpisodeDropped || b.Reward != nil || !strings.Contains(b.Dropped, "out of order") {
		t.Errorf("%+v", b)
	}
	if c := w.turn(other.ID, text("plain")); *c.Reward != 1 {
		t.Errorf("%+v", c)
	}
	run, err := w.store.Run(t.Context(), a.ID)
	if err != nil || run.Status != kw.RunFailed || !strings.Contains(run.Reason, "out of order") {
		t.Errorf("%+v, %v", run, err)
	}
	if s := w.samples(""); len(s) != 1 || s[0].Episode != other.ID {
		t.Errorf("%+v", s)
	}
	if s := w.episodes.Stats(); s.Dropped != 1 || s.Verdicts.Failed != 1 {
		t.Errorf("%+v", s)
	}
}

// A turn that is posted again while its first is evaluated waits for the same answer.
func TestPostedTwice(t *testing.T) {
	w := newWorld(t)
	hold := make(chan struct{})
	w.hardware.hold = hold
	a := w.start(nil)
	turn := text("faster")
	turn["call"] = 0
	var both sync.WaitGroup
	for range 3 {
		both.Go(func() {
			if b := w.turn(a.ID, turn); !b.Done || *b.Reward != 2 {
				t.Errorf("%+v", b)
			}
		})
	}
	<-w.hardware.held
	if got := w.must("GET", fmt.Sprintf("/v1/episodes/%d", a.ID), nil); !got.Working || got.Done || got.Call != 1 {
		t.Errorf("%+v", got)
	}
	if code, _ := w.call("POST", fmt.Sprintf("/v1/episodes/%d/turns", a.ID), text("another")); code != http.StatusConflict {
		t.Errorf("another turn: %d", code)
	}
	close(hold)
	both.Wait()
	if n := w.episodes.Stats(); n.Turns != 1 || n.Verdicts.Asked != 1 {
		t.Errorf("%+v", n)
	}
}

// What nobody continues expires; what is being evaluated does not.
func TestExpiry(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Expiry = time.Hour })
	hold := make(chan struct{})
	w.hardware.hold = hold
	idle, busy := w.start(nil), w.start(nil)
	var evaluated sync.WaitGroup
	evaluated.Go(func() {
		if a := w.turn(busy.ID, text("plain")); *a.Reward != 1 {
			t.Errorf("%+v", a)
		}
	})
	<-w.hardware.held
	w.clock.pass(59 * time.Minute)
	w.episodes.Sweep()
	if a := w.must("GET", fmt.Sprintf("/v1/episodes/%d", idle.ID), nil); a.Done {
		t.Errorf("too early: %+v", a)
	}
	w.clock.pass(time.Minute)
	w.episodes.Sweep()
	a := w.must("DELETE", fmt.Sprintf("/v1/episodes/%d", idle.ID), nil) // waits for its end
	if a.Status != store.EpisodeExpired || a.Dropped != "nobody continued it" {
		t.Errorf("%+v", a)
	}
	if code, got := w.call("POST", fmt.Sprintf("/v1/episodes/%d/turns", idle.ID), text("late")); code != http.StatusConflict {
		t.Errorf("%d %v", code, got)
	}
	close(hold)
	evaluated.Wait()
	// Later the last answer is forgotten, and the record says what there was.
	w.clock.pass(linger)
	w.episodes.Sweep()
	code, got := w.call("POST", fmt.Sprintf("/v1/episodes/%d/turns", idle.ID), text("late"))
	if code != http.StatusGone || !strings.Contains(fmt.Sprint(got), "expired") {
		t.Errorf("%d %v", code, got)
	}
	if a := w.must("GET", fmt.Sprintf("/v1/episodes/%d", busy.ID), nil); *a.Reward != 1 || !a.Done {
		t.Errorf("%+v", a)
	}
	if s := w.episodes.Stats(); s.Expired != 1 || s.Done != 1 {
		t.Errorf("%+v", s)
	}
}

// A trainer that lets a call wait in a queue of its own says for how long.
func TestOwnExpiry(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Expiry = time.Hour })
	short, usual, long := w.start(map[string]any{"expires_s": 60}), w.start(nil), w.start(map[string]any{"expires_s": maxExpiry})
	after := func(d time.Duration, want map[int64]store.EpisodeStatus) {
		w.clock.pass(d)
		w.episodes.Sweep()
		for id, status := range want {
			if status != store.EpisodeOpen {
				w.must("DELETE", fmt.Sprintf("/v1/episodes/%d", id), nil) // waits for its end
			}
			if a := w.must("GET", fmt.Sprintf("/v1/episodes/%d", id), nil); a.Status != status {
				t.Errorf("%d: %+v, want %s", id, a, status)
			}
		}
	}
	after(time.Minute, map[int64]store.EpisodeStatus{short.ID: store.EpisodeExpired, usual.ID: store.EpisodeOpen, long.ID: store.EpisodeOpen})
	after(time.Hour, map[int64]store.EpisodeStatus{usual.ID: store.EpisodeExpired, long.ID: store.EpisodeOpen})
	after(23*time.Hour, map[int64]store.EpisodeStatus{long.ID: store.EpisodeExpired})
}

// A trainer that was started again frees the places of its session, and no others.
func TestSession(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.MaxOpen = 4 })
	done := w.start(map[string]any{"session": "a b"})
	w.turn(done.ID, text("plain"))
	mine, again := w.start(map[string]any{"session": "a b"}), w.start(map[string]any{"session": "a b"})
	other, none := w.start(map[string]any{"session": "a"}), w.start(nil)
	for _, want := range []float64{2, 0} {
		if code, got := w.call("DELETE", "/v1/episodes?session=a+b", nil); code != 200 || got["given_up"] != want {
			t.Errorf("%d %v, want %v", code, got, want)
		}
	}
	for id, want := range map[int64]store.EpisodeStatus{
		done.ID: store.EpisodeDone, mine.ID: store.EpisodeGivenUp, again.ID: store.EpisodeGivenUp, other.ID: store.EpisodeOpen, none.ID: store.EpisodeOpen,
	} {
		if a := w.must("GET", fmt.Sprintf("/v1/episodes/%d", id), nil); a.Status != want {
			t.Errorf("%d: %+v, want %s", id, a, want)
		}
	}
	if s := w.episodes.Stats(); s.Open != 2 || s.GivenUp != 2 {
		t.Errorf("%+v", s)
	}
	w.start(nil)
}

// What is recorded and does not begin is not left open.
func TestDoesNotBegin(t *testing.T) {
	w := newWorld(t)
	w.episodes.cancel(errClosing) // after it was let in
	r := Request{Reference: "class Model: pass"}
	if err := r.normalise(); err != nil {
		t.Fatal(err)
	}
	settings, err := r.settings(forge.DefaultSettings())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.episodes.begin(t.Context(), r, settings); !errors.Is(err, errClosing) {
		t.Fatal(err)
	}
	record, err := w.store.Episode(t.Context(), 1)
	run, other := w.store.Run(t.Context(), 1)
	if err != nil || other != nil || record.Status != store.EpisodeLost || run.Status != kw.RunFailed || run.Reason != errClosing.Error() || run.FinishedMS == 0 {
		t.Errorf("%+v, %+v, %v, %v", record, run, err, other)
	}
}

// One that is given up ends, and what it asked for leaves the queue.
func TestGivenUp(t *testing.T) {
	w := newWorld(t)
	hold := make(chan struct{})
	w.hardware.hold = hold
	first, second := w.start(nil), w.start(map[string]any{"reference": "class Model: 2"})
	var posted sync.WaitGroup
	post := func(id int64, words string, want store.EpisodeStatus) {
		posted.Go(func() {
			if a := w.turn(id, text(words)); a.Status != want {
				t.Errorf("%+v", a)
			}
		})
	}
	post(first.ID, "first", store.EpisodeDone)
	<-w.hardware.held
	post(second.ID, "second", store.EpisodeGivenUp)
	await.Until(t, "the second waits", func() bool { return w.episodes.Stats().Verdicts.Waiting > 0 })
	if a := w.must("DELETE", fmt.Sprintf("/v1/episodes/%d", second.ID), nil); a.Status != store.EpisodeGivenUp || a.Reward != nil {
		t.Errorf("%+v", a)
	}
	if n := w.episodes.Stats().Verdicts.Waiting; n != 0 {
		t.Errorf("%d wait", n)
	}
	close(hold)
	posted.Wait()
	if n := len(w.hardware.evaluated); n != 1 {
		t.Errorf("%d evaluated", n)
	}
}

// After the end of a server what it had open is gone, with a clear word, and what
// it had done is not.
func TestRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	var open, done int64
	t.Run("first", func(t *testing.T) {
		w := newWorldIn(t, path)
		done, open = w.start(nil).ID, w.start(nil).ID
		w.turn(done, text("fastest"))
	})
	t.Run("second", func(t *testing.T) {
		w := newWorldIn(t, path)
		code, got := w.call("POST", fmt.Sprintf("/v1/episodes/%d/turns", open), text("plain"))
		if code != http.StatusGone || !strings.Contains(fmt.Sprint(got["error"]), "lost") {
			t.Errorf("%d %v", code, got)
		}
		if a := w.must("GET", fmt.Sprintf("/v1/episodes/%d", done), nil); *a.Reward != 3 {
			t.Errorf("%+v", a)
		}
		if code, _ := w.call("POST", "/v1/episodes/99/turns", text("plain")); code != http.StatusNotFound {
			t.Errorf("%d", code)
		}
		e, err := store.Examine(t.Context(), path, func(string) {})
		if err != nil || !e.Sound() {
			t.Errorf("%+v, %v", e.Faults, err)
		}
	})
}

// There are so many places, and who gives one back makes room.
func TestPlaces(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.MaxOpen = 2 })
	a := w.start(nil)
	w.start(nil)
	body := map[string]any{"reference": "class Model: pass"}
	if code, got := w.call("POST", "/v1/episodes", body); code != http.StatusServiceUnavailable || got["hint"] == "" || got["infrastructure"] != nil {
		t.Errorf("%d %v", code, got)
	}
	w.must("DELETE", fmt.Sprintf("/v1/episodes/%d", a.ID), nil)
	if code, got := w.call("POST", "/v1/episodes", map[string]any{"reference": "no task"}); code != http.StatusUnprocessableEntity || !strings.Contains(fmt.Sprint(got["error"]), "no Model") {
		t.Errorf("%d %v", code, got)
	}
	if code, got := w.call("POST", "/v1/episodes", map[string]any{"reference": "no machine"}); code != http.StatusServiceUnavailable || got["infrastructure"] != true {
		t.Errorf("%d %v", code, got)
	}
	w.start(nil) // neither has kept the place
	w.episodes.Close()
	for name, want := range map[string]error{"full": &FullError{2}, "closing": w.episodes.reserve()} {
		got := httptest.NewRecorder()
		reply(got, http.StatusCreated, Answer{}, want)
		if got.Code != http.StatusServiceUnavailable || got.Header().Get("Retry-After") == "" || strings.Contains(got.Body.String(), "infrastructure") {
			t.Errorf("%s: %d %v %s", name, got.Code, got.Header(), got.Body)
		}
	}
}
