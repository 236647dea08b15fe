package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// heard is an event as it comes.
type heard struct {
	id, kind string
	data     map[string]any
}

// ear is a listener.
type ear struct {
	t      testing.TB
	events chan heard // closed at the end of the stream
	stop   context.CancelFunc
}

// listen begins to listen, to path's query, after an id where that is not empty.
func (w *world) listen(query, after string) *ear {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, w.http.URL+eventsPath+query, nil)
	w.check(err)
	if after != "" {
		q.Header.Set("Last-Event-ID", after)
	}
	r, err := w.http.Client().Do(q) //nolint:bodyclose // by the goroutine below
	w.check(err)
	if r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != "text/event-stream" {
		w.t.Fatal(r.Status, r.Header)
	}
	e := &ear{w.t, make(chan heard, 10_000), cancel}
	go func() {
		defer close(e.events)
		defer r.Body.Close()
		var h heard
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "id":
				h.id = value
			case "event":
				h.kind = value
			case "data":
				if json.Unmarshal([]byte(value), &h.data) != nil {
					h.data = map[string]any{"not": value}
				}
			case "":
				if h.kind != "" {
					e.events <- h
				}
				h = heard{}
			}
		}
	}()
	return e
}

// next is the next event.
func (e *ear) next() heard {
	e.t.Helper()
	select {
	case h, there := <-e.events:
		if !there {
			e.t.Fatal("the stream ended")
		}
		if h.data["at"] == nil {
			e.t.Errorf("%+v has no time", h)
		}
		return h
	case <-time.After(time.Minute):
		e.t.Fatal("nothing came")
	}
	return heard{}
}

// ended waits for the end of the stream, and returns what came before.
func (e *ear) ended() (last heard) {
	for h := range e.events {
		last = h
	}
	return last
}

// round records the next round of a run.
func (w *world) round(run int64, index int) {
	w.t.Helper()
	w.check(w.store.AppendRound(w.t.Context(), kernelwright.Round{RunID: run, Index: index, Candidate: kernelwright.Candidate{Source: fmt.Sprint(run, index)}, Verdict: kernelwright.Verdict{Status: kernelwright.Wrong}}))
}

// What is recorded is told in its order, once, to who goes on from where they were: after
// the stream ended, and by another server of the same record.
func TestEventsAreToldOnceAndInOrder(t *testing.T) {
	w := newWorld(t, nil)
	e := w.listen("", "")
	if h := e.next(); h.kind != EventReady || h.id == "" || h.data["version"] != "1" || h.data["paused"] != false {
		t.Errorf("%+v", h)
	}
	last := ""
	index := 3
	for range 3 { // connections
		for range 20 {
			w.round(1, index)
			index++
		}
		for range 20 {
			h := e.next()
			if h.kind != store.EventRound || h.data["round"] == nil || h.id == "" {
				t.Fatalf("%+v", h)
			}
			last = h.id
		}
		e.stop()
		e.ended()
		w.api.Close()
		w.round(1, index) // while nobody listens
		index++
		next := New(Options{Store: w.store, Version: "1"})
		w.http.Config.Handler, w.api = next, next
		e = w.listen("", last)
		if h := e.next(); h.kind != EventReady || h.id != last {
			t.Fatalf("%+v, want ready at %s", h, last)
		}
		if h := e.next(); h.kind != store.EventRound || h.data["round"] != float64(index-1) {
			t.Fatalf("%+v, want round %d", h, index-1)
		}
	}
	e.stop()
}

// Who listens to a run, or to some kinds, hears of them alone; what is not recorded has
// no id.
func TestListenersHearWhatTheyWant(t *testing.T) {
	w := newWorld(t, nil)
	one, rounds := w.listen("?run=2", ""), w.listen("?kinds=round,progress", "")
	past := w.listen("?run=1&kinds=certificate&after=1", "")
	for _, e := range []*ear{one, rounds, past} {
		e.next() // ready
	}
	if h := past.next(); h.kind != store.EventCertificate || h.data["run"] != 1. || h.data["exported_sha256"] == nil {
		t.Errorf("%+v", h)
	}
	w.round(1, 3)
	w.api.Progress(Progress{Run: 2, Round: 1, Step: "proposed"})
	w.round(2, 3)
	w.api.Step(Step{Pipeline: 1, Stage: "rft", Metrics: map[string]any{"loss": 0.5}})
	w.check(w.store.PauseQueue(t.Context(), true))
	got := []heard{one.next(), one.next(), rounds.next(), rounds.next(), rounds.next()}
	for i, want := range []string{"2 1 proposed", "2 3 <nil>", "2 1 proposed", "1 3 <nil>", "2 3 <nil>"} {
		h := got[i]
		if i == 2 && h.kind == store.EventRound { // told at once, while what is recorded is looked for
			h, got[3] = got[3], h
		}
		if is := fmt.Sprint(h.data["run"], " ", h.data["round"], " ", h.data["step"]); is != want || (h.kind == EventProgress) != (h.id == "") {
			t.Errorf("%d: %s %+v, want %s", i, is, h, want)
		}
	}
}

// An id that is not kept any more, or of another record, is told to be one.
func TestAGapIsTold(t *testing.T) {
	w := newWorld(t, nil)
	e := w.listen("", "999999999")
	if h := e.next(); h.kind != EventReady {
		t.Errorf("%+v", h)
	}
	if h := e.next(); h.kind != EventGap || h.data["oldest"] != 1. || h.id == "" || h.id == "999999999" {
		t.Errorf("%+v", h)
	}
}

// A record that is restored from an older backup goes on to other numbers than the one that
// it takes the place of, so whoever comes back with one of those is told of the gap.
func TestARestoredRecordHasAGap(t *testing.T) {
	path, backup := filepath.Join(t.TempDir(), store.FileName), filepath.Join(t.TempDir(), "backup.db")
	ctx := t.Context()
	open := func() (*store.Store, *world) {
		s, err := store.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		a := New(Options{Store: s, Version: "1"})
		w := &world{t: t, api: a, store: s, http: httptest.NewServer(a)}
		return s, w
	}
	shut := func(w *world) {
		w.api.Close()
		w.http.Close()
		w.check(w.store.Close())
	}
	s, w := open()
	record := func(s *store.Store, runs int) {
		for range runs {
			_, err := s.CreateRun(ctx, kernelwright.Run{TaskName: "new", Status: kernelwright.RunFailed, Reason: "x"})
			w.check(err)
		}
	}
	record(s, 3)
	w.check(store.Backup(ctx, path, backup))
	record(s, 5)
	_, last, err := s.EventBounds(ctx)
	w.check(err)
	shut(w)
	_, err = store.Restore(ctx, path, backup, time.Now(), func(string) {})
	w.check(err)
	for recorded := range 2 {
		s, w = open()
		record(s, 20*recorded) // more than were lost
		e := w.listen("", fmt.Sprint(last))
		if h := e.next(); h.kind != EventReady || h.id == "" {
			t.Errorf("%+v", h)
		}
		if h := e.next(); h.kind != EventGap {
			t.Errorf("after %d more, a listener that was at %d gets %+v, want a gap", 20*recorded, last, h)
		}
		for range 20 * recorded {
			if h := e.next(); h.kind != store.EventRun {
				t.Errorf("%+v", h)
			}
		}
		e.stop()
		shut(w)
	}
}

// Who never reads is dropped, and keeps nobody waiting: neither who records, nor who
// reads. More than there are places for are told to come again, and answers go on.
func TestListenersWhoNeverRead(t *testing.T) {
	w := newWorld(t, nil)
	for range 4 { // nobody reads their frames
		if _, err := w.api.hub.join(t.Context(), &listener{frames: make(chan []byte, maxFrames)}); err != nil {
			t.Fatal(err)
		}
	}
	reads := w.listen("?kinds=step", "")
	reads.next()
	for i := range maxFrames + 10 {
		w.api.Step(Step{Step: i})
		if h := reads.next(); h.data["step"] != float64(i) {
			t.Fatalf("%+v, want step %d", h, i)
		}
	}
	if n, dropped := w.api.hub.count(); n != 1 || dropped != 4 {
		t.Errorf("%d listen, %d were dropped", n, dropped)
	}
	for range maxListeners - 1 {
		w.api.limits["GET "+eventsPath].places <- struct{}{}
	}
	if r, body := w.ask("GET", eventsPath, ""); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
		t.Errorf("%s %s", r.Status, body)
	}
	if r, _ := w.ask("GET", "/api/v1/runs", ""); r.StatusCode != http.StatusOK {
		t.Error(r.Status)
	}
	if r, _ := w.ask("HEAD", "/healthz", ""); r.StatusCode != http.StatusOK {
		t.Error(r.Status)
	}
	w.api.Close()
	reads.ended()
	for range maxListeners - 1 {
		<-w.api.limits["GET "+eventsPath].places
	}
	if r, body := w.ask("GET", eventsPath, ""); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after the end: %s %s", r.Status, body)
	}
}

// Devices are told of while somebody listens.
func TestDevicesAreSampled(t *testing.T) {
	load := 0.5
	w := newWorld(t, func(o *Options) {
		o.Sample = func(context.Context) []Sample { return []Sample{{Device: "cpu", Name: "a CPU", Load: &load}} }
	})
	e := w.listen("?kinds=device", "")
	e.next()
	if h := e.next(); h.kind != EventDevice || h.id != "" || h.data["load"] != 0.5 || h.data["temperature_c"] != nil {
		t.Errorf("%+v", h)
	}
}

func TestBadListeners(t *testing.T) {
	w := newWorld(t, nil)
	for _, query := range []string{"?run=0", "?run=x", "?kinds=nonsense", "?after=-1", "?after=99999999999999999999", "?after=x", "?what=1"} {
		if r, body := w.ask("GET", eventsPath+query, ""); r.StatusCode != http.StatusBadRequest || !strings.Contains(body, "hint") {
			t.Errorf("%s: %s %s", query, r.Status, body)
		}
	}
	if r, body := w.ask("GET", eventsPath, "", "Last-Event-ID", "..%00"); r.StatusCode != http.StatusBadRequest {
		t.Errorf("%s %s", r.Status, body)
	}
	if r, body := w.ask("HEAD", eventsPath, ""); r.StatusCode != http.StatusOK || body != "" {
		t.Errorf("%s %s", r.Status, body)
	}
}
