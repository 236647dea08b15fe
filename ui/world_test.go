package ui

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/api"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/internal/web"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// world is the pages over HTTP of a record.
type world struct {
	t     testing.TB
	store *store.Store
	ui    *UI
	http  *httptest.Server
	calls []string // changes that the API was asked for
	real  []int64  // runs that were really made
}

// newWorld has an empty record behind the pages, and the API.
func newWorld(t testing.TB, change func(*Options)) *world {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: s}
	o := Options{
		Store: s, Version: "1",
		Run: func(ctx context.Context, id int64, talk bool) (report.Data, error) {
			if talk {
				return daemon.Load(ctx, s, id)
			}
			return daemon.LoadQuiet(ctx, s, id)
		},
		Bench:  w.bench,
		Curves: func(store.Stage) ([]Curve, error) { return curves(), nil },
		Budget: Budget{USD: 5, Tokens: 2_000_000},
	}
	if change != nil {
		change(&o)
	}
	load, warm := 0.42, 51.0
	serves := api.New(api.Options{
		Store: s, Version: "1", Token: o.Token, ReadToken: o.ReadToken, Folder: t.TempDir(), Patterns: []string{"*.py"}, Policies: promoter{s},
		Sample: func(context.Context) []api.Sample {
			return []api.Sample{{Device: "cpu", Load: &load, TemperatureC: &warm}}
		},
	})
	o.API = w.noted(serves)
	w.ui = New(o)
	w.http = httptest.NewServer(w.ui)
	t.Cleanup(func() {
		serves.Close()
		w.http.Close()
		w.check(s.Close())
	})
	return w
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// noted hands requests to the API, and notes those that change something.
func (w *world) noted(real http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !web.Reads(r) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				w.t.Error(err)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			w.calls = append(w.calls, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization")+" "+string(body))
		}
		real.ServeHTTP(rw, r)
	})
}

// promoter has policies serve that no process serves here.
type promoter struct{ store *store.Store }

func (p promoter) Promote(ctx context.Context, version int64, reason string) error {
	return p.store.Promote(ctx, func([]store.Promotion) (store.Promotion, bool, error) {
		return store.Promotion{Policy: version, Reason: reason}, true, nil
	})
}

func (p promoter) Rollback(ctx context.Context, reason string) error {
	return p.Promote(ctx, 1, reason)
}

func (w *world) bench(ctx context.Context, id int64) (b report.Bench, err error) {
	if b.Bench, err = w.store.Bench(ctx, id); err != nil {
		return b, err
	}
	members, err := w.store.Members(ctx, id)
	if err != nil {
		return b, err
	}
	for _, m := range members {
		d, err := daemon.Load(ctx, w.store, m.RunID)
		if err != nil {
			return b, err
		}
		b.Runs, b.Machine = append(b.Runs, report.ReduceRun(d, m, report.Spend{Spend: d.Spend})), d.Device
	}
	return b, nil
}

func curves() []Curve {
	c := Curve{Part: "ppo"}
	for i := range 300 {
		c.Steps = append(c.Steps, map[string]float64{"step": float64(i), "reward": -1 + float64(i)/100, "entropy": 2 / float64(i+1), "kl_k3": float64(i%7) / 1000, "tokens_per_second": 900})
	}
	return []Curve{c}
}

// recorded are runs as kernelwright made them on a CPU: two of the built-in Coder, of
// which both are beams, and one of a model whose answers were recorded.
func recorded(t testing.TB) (all []report.Data) {
	t.Helper()
	f, err := os.Open("testdata/runs.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(z).Decode(&all)
	}
	if err != nil {
		t.Fatal(err)
	}
	// The model's run was cut short after the round that it was corrected in: what would
	// have come next is another run's.
	d := &all[2]
	next := all[0].Rounds[0]
	next.Index, next.Certificate, next.Feedback = 1, nil, nil
	next.Candidate.Origin, next.Candidate.Note = d.Rounds[0].Candidate.Origin, "one loop, as it was asked"
	d.Rounds = append(d.Rounds, next)
	for _, c := range slices.Clone(d.Talk) {
		c.Key.Round = 1
		d.Talk = append(d.Talk, c)
	}
	d.Run.Status, d.Run.Stop, d.Run.FinishedMS = kernelwright.RunDone, kernelwright.StopRounds, next.FinishedMS
	return all
}

// record puts a run into the record as it was made.
func (w *world) record(d report.Data) int64 {
	w.t.Helper()
	ctx := w.t.Context()
	w.check(w.store.SaveTask(ctx, d.Task))
	w.check(w.store.SaveDevice(ctx, d.Device))
	run, err := w.store.CreateRun(ctx, d.Run, store.WithReference(d.Task.Source), store.WithFile(store.File{Path: d.Run.Path, Hash: kernelwright.HashText(d.Task.Source)}))
	w.check(err)
	for _, c := range d.Talk {
		c.Key.Run = run.ID
		usd := 0.02
		_, err := w.store.Book(ctx, llm.Charge{Key: c.Key, Model: c.Model, Usage: c.Reply.Usage, USD: &usd, EndedMS: time.Now().UnixMilli()})
		w.check(err)
		w.check(w.store.Append(ctx, c))
	}
	for _, r := range d.Rounds {
		r.RunID = run.ID
		certificate := r.Certificate
		r.Certificate = nil
		w.check(w.store.AppendRound(ctx, r))
		if certificate != nil {
			w.check(w.store.SetCertificate(ctx, run.ID, r.Index, *certificate))
		}
	}
	d.Run.ID, d.Run.CreatedMS = run.ID, run.CreatedMS
	w.check(w.store.UpdateRun(ctx, d.Run))
	return run.ID
}

// fill records what was really made, and of everything else something.
func (w *world) fill() {
	w.t.Helper()
	ctx, s := w.t.Context(), w.store
	now := time.Now().UnixMilli()
	for _, d := range recorded(w.t) {
		w.real = append(w.real, w.record(d))
	}
	first := recorded(w.t)[0]
	first.Device.Key, first.Device.Name = "gpu key", "NVIDIA H200"
	first.Device.Kind, first.Run.Device, first.Run.DeviceKey = kernelwright.CUDADevice, "cuda:0", "gpu key"
	first.Run.Status, first.Run.FinishedMS, first.Run.Stop = kernelwright.RunRunning, 0, ""
	w.record(first)
	for i := range 3 {
		_, err := s.Enqueue(ctx, kernelwright.Run{TaskName: fmt.Sprint("waits ", i)}, i/2)
		w.check(err)
	}
	n, err := s.BeginNight(ctx, store.Night{DueMS: now - 8e6, UntilMS: now + 1e6, BegunMS: now - 8e6, Owner: "1@2@3"})
	w.check(err)
	n.SeenMS, n.EndedMS, n.Stop, n.WorkedMS, n.GPUMS = now-1e6, now-1e6, "done", 6e6, 5e6
	w.check(s.SaveNight(ctx, n))
	p, err := s.BeginPipeline(ctx, []byte(`{"small":true}`))
	w.check(err)
	for _, name := range []string{"synthesise", "rft"} {
		st, err := s.BeginStage(ctx, p.ID, name, []byte(`{}`), []byte(`{"epochs":1}`))
		w.check(err)
		st.Status, st.EndedMS, st.Seconds, st.Verdicts, st.Outputs = store.StageDone, now, 61.5, 12, []byte(`{"kept": 4}`)
		w.check(s.SaveStage(ctx, st))
	}
	for i, base := range []string{"HuggingFaceTB/SmolLM2-135M", "v1"} {
		_, err := s.SavePolicy(ctx, store.Policy{Digest: strings.Repeat(fmt.Sprintf("%02x", 0xc0+i), 32), Base: base, License: "apache-2.0", Pipeline: int64(i), Stage: "rft", Bytes: 5e8, Files: []byte("[]")}, func(int64) error { return nil })
		w.check(err)
	}
	w.check(s.Promote(ctx, func([]store.Promotion) (store.Promotion, bool, error) {
		return store.Promotion{Policy: 1, Reason: "it is better"}, true, nil
	}))
	b, err := s.CreateBench(ctx, kernelwright.Bench{
		References: []kernelwright.Reference{{Name: "gelu_chain"}}, Seeds: []int64{0}, Configurations: []kernelwright.Configuration{{Strategy: "beam", Coder: "builtin", Judge: "rules", Rounds: 4}}, Command: []string{"kernelwright", "bench"},
	})
	w.check(err)
	d := recorded(w.t)[0]
	run, err := s.CreateRun(ctx, kernelwright.Run{TaskName: d.Run.TaskName, Status: kernelwright.RunQueued}, store.WithMember(b.ID, kernelwright.Member{}))
	w.check(err)
	run.Status, run.Reason = kernelwright.RunDeclined, "there is nothing to gain"
	w.check(s.UpdateRun(ctx, run))
	w.check(s.FinishBench(ctx, b.ID))
	audit, err := s.CreateAudit(ctx, kernelwright.Audit{Path: "/home/user/set", Level: kernelwright.Quick, DeviceName: "a CPU", Command: []string{"kernelwright", "audit"}})
	w.check(err)
	measured := d.Rounds[0].Verdict
	measured.Speedups = map[string]kernelwright.Speedup{"eager": {Value: 7, Low: 6.5, High: 7.5, Against: "eager"}}
	for i, v := range []kernelwright.Verdict{{Status: kernelwright.Wrong, Reason: "row 3 differs"}, measured} {
		w.check(s.KeepAudited(ctx, audit.ID, 1, kernelwright.AuditPair{Reference: "a.py", Candidate: fmt.Sprint("b", i, ".py"), Index: i, Claim: &kernelwright.Claim{Speedup: 3000, Against: "eager"}, Verdict: v}))
	}
}

// train records a stage whose policy answered at two steps, and returns the runs.
func (w *world) train() (runs []int64) {
	w.t.Helper()
	ctx, s := w.t.Context(), w.store
	st, err := s.BeginStage(ctx, 1, "agentic", []byte(`{}`), []byte(`{}`))
	w.check(err)
	st.Status, st.EndedMS, st.Outputs = store.StageDone, time.Now().UnixMilli(), []byte(`{}`)
	w.check(s.SaveStage(ctx, st))
	d := recorded(w.t)[0]
	for i, reward := range []int{-1, 3, 1} {
		run, err := s.CreateRun(ctx, kernelwright.Run{TaskName: "reference", Task: d.Run.Task, Device: "cpu", DeviceKey: d.Run.DeviceKey, Strategy: "rounds", Coder: "training:p1-agentic-1-train", Status: kernelwright.RunRunning},
			store.WithReference(d.Task.Source), store.WithEpisode(store.Episode{Policy: "p1-agentic-1-train", Rule: "last"}))
		w.check(err)
		w.check(s.SaveTask(ctx, d.Task))
		w.check(s.Append(ctx, llm.Record{
			Key: llm.Key{Run: run.ID, Agent: "coder"}, Model: "training:p1-agentic-1-train", Request: llm.Request{Messages: []llm.Message{{Role: llm.User, Text: "write <it>"}}},
			Reply: llm.Reply{Text: "An answer <b>.", Stop: llm.StopEnd, PromptIDs: []int{1}, TokenIDs: []int{2, 3}, LogProbs: []float64{-1, -2}},
		}))
		round := d.Rounds[0]
		round.RunID, round.Certificate, round.Candidate.Source = run.ID, nil, "# <i>a candidate\nimport torch\n"
		w.check(s.AppendRound(ctx, round))
		run.Status = kernelwright.RunDone
		_, err = s.EndEpisode(ctx, store.Episode{Run: run.ID, Status: store.EpisodeDone, Reward: &reward}, run, []store.Sample{{Context: "replace", Finish: "stop", Policy: fmt.Sprintf("p1-agentic-1-train-%d", i/2)}})
		w.check(err)
		runs = append(runs, run.ID)
	}
	return runs
}

// reply is an answer with its body.
type reply struct {
	code   int
	header http.Header
	body   string
}

// ask sends a request as a browser does and follows nothing.
func (w *world) ask(method, path, body string, header ...string) reply {
	w.t.Helper()
	q, err := http.NewRequestWithContext(w.t.Context(), method, w.http.URL+path, strings.NewReader(body))
	w.check(err)
	if method == http.MethodPost {
		q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			q.Host = header[i+1]
		}
		q.Header.Set(header[i], header[i+1])
	}
	r, err := w.http.Client().Transport.RoundTrip(q)
	w.check(err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	w.check(err)
	return reply{r.StatusCode, r.Header, string(text)}
}
