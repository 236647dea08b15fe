// Package daydata takes what people's runs recorded as data to train on: the
// trajectories that led to certified kernels, of models whose licence allows it.
package daydata

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
)

// Why a run is left out. Each is a clause whose subject is the run.
const (
	NotEnded     = "has not ended"
	OfBench      = "is part of a bench"
	NoModel      = "was coded by no language model"
	NotAllowed   = "has a model on whose answers nothing may be trained (train_on)"
	Cheated      = "has a candidate that cheated"
	NotCertified = "has no certified kernel of its own"
	HeldOut      = "is about a task that is held out"
	Protected    = "is about a task that is like a protected one"
	Uncompared   = "is about a task that cannot be compared with protected ones"
	HasSecret    = "holds what looks like a secret"
	NoRecord     = "lacks some of its talk in the record"
	Invalid      = "has an answer that held no candidate and called no tool, or was cut off"
	Repeats      = "says the same twice, or what another one said"
	NativeTools  = "has native calls of tools, which have no form as text"
)

// Filter says what may be taken. Every field but Protected is needed.
type Filter struct {
	// TrainOn reports whether a model's licence allows that a policy is trained on its
	// answers. The name is "provider:model".
	TrainOn func(model string) bool
	// Secret reports whether a text holds what must not leave this machine. What looks
	// like a private key is seen without it.
	Secret func(text string) bool
	// Protected returns why a reference must not be trained on, Protected or Uncompared,
	// "" where nothing speaks against it. Nil: nothing is protected.
	Protected func(ctx context.Context, reference string) (reason string, err error)
}

// Counts says what was taken, and what was not for which reason.
type Counts struct {
	Runs         int            `json:"runs"`         // that were looked at: all but episodes
	Trajectories int            `json:"trajectories"` // that were taken
	Calls        int            `json:"calls"`        // of models in them
	Models       map[string]int `json:"models"`       // trajectories by who wrote them
	LeftOut      map[string]int `json:"left_out"`     // runs by reason
}

// Trajectory is what led to a certified kernel, call by call, as texts. Token ids of who
// wrote it are not in it: another policy has another tokenizer, and rejection fine-tuning,
// which needs no log-probabilities, is all that trajectories which led to success alone can
// serve.
type Trajectory struct {
	Run     int64
	Task    string // fingerprint
	Model   string
	Reward  int
	Calls   []Call
	Verdict kernelwright.Verdict // of the last one: the certificate
}

// Call is an answer of a model and what it answers.
type Call struct {
	Author   string // who answered: of policies the version
	Messages []llm.Message
	Text     string
}

// Each gives the trajectories that pass the filter, by run, and counts. The error
// is the record's, or give's.
func Each(ctx context.Context, s *store.Store, f Filter, give func(Trajectory) error) (Counts, error) {
	c := Counts{Models: map[string]int{}, LeftOut: map[string]int{}}
	if f.TrainOn == nil || f.Secret == nil {
		return c, errors.New("take what people's runs recorded: the filter does not say what may be taken")
	}
	taker, err := newTaker(ctx, s, f)
	if err != nil {
		return c, err
	}
	runs, err := s.RunsOfPeople(ctx)
	if err != nil {
		return c, err
	}
	for _, of := range runs {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		t, reason, err := taker.take(ctx, of)
		if errors.Is(err, store.ErrNotFound) { // it went meanwhile
			continue
		}
		if err != nil {
			return c, fmt.Errorf("run %d: %w", of.ID, err)
		}
		c.Runs++
		if reason != "" {
			c.LeftOut[reason]++
			continue
		}
		c.Trajectories++
		c.Calls += len(t.Calls)
		c.Models[t.Model]++
		if err := give(t); err != nil {
			return c, err
		}
	}
	return c, nil
}

// taker decides on runs.
type taker struct {
	store *store.Store
	f     Filter
	held  map[string]bool // fingerprints
	said  map[[sha256.Size]byte]bool
}

func newTaker(ctx context.Context, s *store.Store, f Filter) (*taker, error) {
	t := &taker{store: s, f: f, held: map[string]bool{}, said: map[[sha256.Size]byte]bool{}}
	held, err := s.HeldOut(ctx)
	for _, fingerprint := range held {
		t.held[fingerprint] = true
	}
	return t, err
}

// take returns the trajectory of a run, or why it is left out. What costs little
// is looked at first.
func (t *taker) take(ctx context.Context, of store.RunOfPeople) (out Trajectory, reason string, err error) {
	run, err := t.store.Run(ctx, of.ID)
	if err != nil {
		return out, "", err
	}
	switch {
	case run.Status == kernelwright.RunQueued || run.Status == kernelwright.RunRunning:
		return out, NotEnded, nil
	case of.Bench:
		return out, OfBench, nil
	case !strings.Contains(run.Coder, ":"):
		return out, NoModel, nil
	case !t.allowed(run.Coder) || strings.Contains(run.Judge, ":") && !t.allowed(run.Judge):
		return out, NotAllowed, nil
	case run.Best == nil || run.Best.Certificate == nil || run.Best.Certificate.Status != kernelwright.Certified:
		return out, NotCertified, nil
	case t.held[run.Task]:
		return out, HeldOut, nil
	}
	rounds, err := t.store.Rounds(ctx, run.ID)
	if err != nil {
		return out, "", err
	}
	cheats := func(r kernelwright.Round) bool {
		return r.Verdict.Status == kernelwright.Cheated || r.Certificate != nil && r.Certificate.Status == kernelwright.Cheated
	}
	if slices.ContainsFunc(rounds, cheats) {
		return out, Cheated, nil
	}
	records, err := t.store.Calls(ctx, run.ID)
	if err != nil {
		return out, "", err
	}
	path := way(rounds, run.Best.Index)
	calls, reason := t.calls(run, path, records)
	if reason != "" {
		return out, reason, nil
	}
	for _, r := range path {
		if r.Verdict.Build.Form == kernelwright.FormAnswer {
			return out, Invalid, nil
		}
	}
	out = Trajectory{Run: run.ID, Task: run.Task, Model: run.Coder, Reward: episodes.Reward(run.Best.Certificate), Calls: calls, Verdict: *run.Best.Certificate}
	if reason := t.clean(&out); reason != "" {
		return out, reason, nil
	}
	if t.f.Protected != nil {
		task, err := t.store.RunTask(ctx, run.ID)
		if err != nil {
			return out, "", err
		}
		if reason, err := t.f.Protected(ctx, task.Source); err != nil || reason != "" {
			return out, reason, err
		}
	}
	if t.repeats(out) {
		return out, Repeats, nil
	}
	return out, "", nil
}

// allowed reports whether something may be trained on a model's words.
func (t *taker) allowed(model string) bool { return t.f.TrainOn(model) }

// way returns the rounds that led to one, the first first.
func way(rounds []kernelwright.Round, to int) []kernelwright.Round {
	var path []kernelwright.Round
	for at := to; at >= 0 && at < len(rounds) && len(path) <= len(rounds); at = rounds[at].After() {
		path = append(path, rounds[at])
	}
	slices.Reverse(path)
	return path
}

// coderAgent is the agent whose calls are taken.
const coderAgent = "coder"

// calls returns the Coder's calls that led to the last round of a path. In react
// they are those until it was verified; else each round has its own, of which the
// last that was answered counts.
func (t *taker) calls(run kernelwright.Run, path []kernelwright.Round, records []llm.Record) ([]Call, string) {
	of := map[int][]llm.Record{}
	var all []llm.Record
	last := path[len(path)-1].Index
	for _, r := range records {
		if r.Key.Agent != coderAgent || r.Reply.Stop == llm.StopTooLong || r.Reply.Stop == llm.StopNoTools || r.Key.Round > last {
			continue
		}
		of[r.Key.Round] = append(of[r.Key.Round], r)
		all = append(all, r)
	}
	var taken []llm.Record
	if run.Strategy == forge.ReactStrategy {
		taken = latest(all)
		if len(of[last]) == 0 {
			return nil, NoRecord
		}
	} else {
		for _, round := range path {
			answered := of[round.Index]
			if len(answered) == 0 {
				return nil, NoRecord
			}
			taken = append(taken, answered[len(answered)-1])
		}
	}
	calls := make([]Call, len(taken))
	for i, r := range taken {
		if !t.allowed(r.Model) {
			return nil, NotAllowed
		}
		if len(r.Request.Messages) == 0 || r.Reply.Text == "" && len(r.Reply.ToolCalls) == 0 {
			return nil, NoRecord
		}
		if !ended(r.Reply.Stop) || run.Strategy == forge.ReactStrategy && idle(r.Reply) {
			return nil, Invalid
		}
		if len(r.Reply.ToolCalls) > 0 || slices.ContainsFunc(r.Request.Messages, native) {
			return nil, NativeTools
		}
		calls[i] = Call{llm.Author(r.Model, r.Reply), r.Request.Messages, r.Reply.Text}
	}
	return calls, ""
}

// latest returns of calls under one key the last one, in their order.
func latest(all []llm.Record) []llm.Record {
	at := map[llm.Key]int{}
	for i, r := range all {
		at[r.Key] = i
	}
	var out []llm.Record
	for i, r := range all {
		if at[r.Key] == i {
			out = append(out, r)
		}
	}
	return out
}

// idle reports whether an answer of react calls no tool, in its text neither.
func idle(r llm.Reply) bool { return len(r.ToolCalls) == 0 && !strings.Contains(r.Text, "```tool") }

// native reports whether a message cannot be told as text alone.
func native(m llm.Message) bool { return m.Role == llm.ToolRole || len(m.ToolCalls) > 0 }

// ended reports whether a model came to the end of a reply by itself.
func ended(s llm.Stop) bool { return s == llm.StopEnd || s == llm.StopTools }

// clean takes the names of files out of a trajectory, or says why it cannot leave
// at all.
func (t *taker) clean(tr *Trajectory) string {
	for i := range tr.Calls {
		c := &tr.Calls[i]
		c.Messages = slices.Clone(c.Messages)
		for j := range c.Messages {
			m := &c.Messages[j]
			if t.secret(m.Text) {
				return HasSecret
			}
			*m = llm.Message{Role: m.Role, Text: withoutPaths(m.Text)}
		}
		if t.secret(c.Text) {
			return HasSecret
		}
		c.Text = withoutPaths(c.Text)
	}
	return ""
}

func (t *taker) secret(text string) bool { return t.f.Secret(text) || privateKey.MatchString(text) }

// repeats reports whether a trajectory, or one before it about the same task, says
// the same as another answer in it.
func (t *taker) repeats(tr Trajectory) bool {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", tr.Task)
	seen := map[string]bool{}
	for _, c := range tr.Calls {
		if seen[c.Text] {
			return true
		}
		seen[c.Text] = true
		fmt.Fprintf(h, "%q\n", c.Text)
	}
	sum := [sha256.Size]byte(h.Sum(nil))
	before := t.said[sum]
	t.said[sum] = true
	return before
}
