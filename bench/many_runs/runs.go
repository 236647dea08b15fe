package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
)

// measurement is what runs came to.
type measurement struct {
	took             time.Duration
	calls            int // one after the other, in a run
	recorded         int
	words            map[string]int // how often each reply is in the record
	ended            []kernelwright.Run
	rounds           []int
	charged          int64 // calls that were booked, refused ones too
	beforeKB, peakKB int64
	goroutines       int
}

// made is an evaluator that makes its verdicts up: the longer a text's hash, the
// slower.
type made struct{}

func (made) Device() kernelwright.Device {
	return kernelwright.Device{Kind: kernelwright.CPUDevice, Key: "made-up", Name: "a CPU that nobody has", Ceilings: kernelwright.Ceilings{MemoryGBs: 50, FP32GFLOPs: 200}}
}

func (made) Check(context.Context) error { return nil }

func (made) Versions() map[string]string { return nil }

func (made) Inspect(_ context.Context, name, source string) (kernelwright.Task, error) {
	return kernelwright.Task{Fingerprint: kernelwright.HashText(source), Name: name, Source: source, LeastBytes: 1 << 24, Operations: 1 << 24}, nil
}

func (made) Evaluate(_ context.Context, t kernelwright.Task, c kernelwright.Candidate, level kernelwright.Level) (kernelwright.Verdict, error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.Source))
	ms := 1 + float64(h.Sum32()%1000)/1000
	v := kernelwright.Verdict{
		Status: kernelwright.Correct, Level: level, Task: t.Fingerprint, Candidate: kernelwright.HashText(c.Source), Language: c.Language, Device: "cpu", DeviceKey: "made-up",
		CandidateMS: ms, Baselines: map[string]float64{"eager": 2}, Headroom: 0.3 / ms,
		Speedup: &kernelwright.Speedup{Value: 2 / ms, Low: 1.9 / ms, High: 2.1 / ms, Against: "eager"},
	}
	if level == kernelwright.Certify {
		v.Status, v.Exported = kernelwright.Certified, "# standalone\n"+c.Source
		v.ExportedSHA256 = kernelwright.HashText(v.Exported)
	}
	return v, nil
}

const reference = `import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)  # of run %d


def get_inputs():
    return [torch.randn(2048, 1024)]


def get_init_inputs():
    return []
`

// bring makes the runs, all at once, and reads the record.
func bring(ctx context.Context, s settings, url string) (m measurement, err error) {
	db, err := store.Open(filepath.Join(s.dir, store.FileName))
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	templates, err := prompts.LoadTemplates("")
	if err != nil {
		return m, err
	}
	skills, err := prompts.LoadSkills("")
	if err != nil {
		return m, err
	}
	prices := llm.Prices{"openai:slow": {In: 1, Out: 10}}
	// A run is bounded by more than it can use: the budget is asked all the same.
	budget := llm.NewBudget(llm.Allowances{Run: llm.Allowance{USD: 100}, Day: llm.Allowance{Tokens: 1 << 40}}, prices, db, nil)
	model, err := llm.New("openai:slow", llm.Options{BaseURL: url, Getenv: func(string) string { return llmtest.Canary }},
		llm.Services{Prices: prices, Budget: budget, Journal: db})
	if err != nil {
		return m, err
	}
	w := &daemon.Runner{
		Store: db, Evaluator: made{}, Journal: db, RecordOnly: true,
		Coder: coder.Model{LLM: model, Prompts: templates, Skills: skills}, Judge: judge.Model{LLM: model, Prompts: templates, Skills: skills},
	}
	if m.beforeKB, err = memory("VmRSS"); err != nil {
		return m, err
	}
	var most atomic.Int64
	watching, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			most.Store(max(most.Load(), int64(runtime.NumGoroutine())))
			select {
			case <-watching:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	began := time.Now()
	var wg sync.WaitGroup
	m.ended = make([]kernelwright.Run, s.runs)
	errs := make([]error, s.runs)
	for i := range s.runs {
		wg.Go(func() { m.ended[i], errs[i] = one(ctx, w, s, i) })
	}
	wg.Wait()
	m.took = time.Since(began)
	close(watching)
	<-watched
	m.goroutines, m.calls = int(most.Load()), 2*s.rounds-1
	if err := errors.Join(errs...); err != nil {
		return m, err
	}
	if m.peakKB, err = memory("VmHWM"); err != nil {
		return m, err
	}
	return m, m.read(ctx, db)
}

// one takes a run to its end.
func one(ctx context.Context, w *daemon.Runner, s settings, i int) (kernelwright.Run, error) {
	own := *w
	run, err := own.Begin(ctx, daemon.Request{
		Path: fmt.Sprintf("/made/up/%d.py", i), Name: fmt.Sprintf("softmax%d", i), Source: fmt.Sprintf(reference, i),
		Settings: forge.Settings{Rounds: s.rounds, Patience: s.rounds, HeadroomStop: 1, JudgeMode: forge.JudgeBoth},
	})
	if err != nil {
		return run, err
	}
	done, err := own.Run(ctx, run, nil)
	return done.Data.Run, err
}

var replyWord = regexp.MustCompile(`reply\d+end`)

// read counts what is recorded.
func (m *measurement) read(ctx context.Context, db *store.Store) error {
	m.words = map[string]int{}
	for _, run := range m.ended {
		calls, err := db.Calls(ctx, run.ID)
		if err != nil {
			return err
		}
		for _, c := range calls {
			m.recorded++
			m.words[replyWord.FindString(c.Reply.Text)]++
		}
		rounds, err := db.Rounds(ctx, run.ID)
		if err != nil {
			return err
		}
		m.rounds = append(m.rounds, len(rounds))
	}
	spent, err := db.Spent(ctx, llm.Scope{})
	m.charged = spent.Calls
	return err
}

// check says what was lost, or done twice.
func (m *measurement) check(s settings, by served) error {
	var wrong []error
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	for i, run := range m.ended {
		if run.Status != kernelwright.RunDone || run.Best == nil || m.rounds[i] != s.rounds {
			bad("run %d ended as %s with %d rounds", run.ID, run.Status, m.rounds[i])
		}
	}
	for _, word := range by.Replies {
		if m.words[word] != 1 {
			bad("%s is recorded %d times", word, m.words[word])
		}
	}
	if want := s.runs * m.calls; len(by.Replies) != want || m.recorded != want {
		bad("%d replies were sent and %d recorded, %d asked for", len(by.Replies), m.recorded, want)
	}
	if want := int64(len(by.Replies) + by.Refused); m.charged != want {
		bad("%d calls were booked of %d", m.charged, want)
	}
	return errors.Join(wrong...)
}

// memory is a figure of this process's memory in KiB.
func memory(name string) (int64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no %s", name)
}
