// Package teach makes the corpus that a policy begins with: what the built-in Coder
// answers to what an episode asks first, with schedules drawn at random, as far as it
// is right. And it says how much of what a policy writes later is its own.
package teach

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"log/slog"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

// Hardware is a device, as far as candidates are verified on it: an
// hwfeedback.Untimed, as no time is asked for. Its ceilings are measured: prompts tell
// them, as those of episodes do. A batch is of one task; an error of
// either is infrastructure, but for a *kernelwright.InvalidTaskError.
type Hardware interface {
	Device() kernelwright.Device
	Inspect(ctx context.Context, name, source string) (kernelwright.Task, error)
	EvaluateBatch(ctx context.Context, task kernelwright.Task, candidates []kernelwright.Candidate, level kernelwright.Level, yield func(int, kernelwright.Verdict) error) error
}

// The defaults of Settings.
const (
	DefaultEach  = 8
	triesForEach = 2
)

// Settings say what a corpus is to be. With the same settings, tasks and verdicts it is
// the same file.
type Settings struct {
	Seed int64 `json:"seed"`
	// Each is how many different right answers a task has at most; 0: DefaultEach. There
	// are fewer where the Coder has no more, or twice as many were tried.
	Each int `json:"each"`
	// MaxBytes is how long an answer may be; 0: as long as it is.
	MaxBytes int `json:"max_bytes,omitempty"`
	// Request is what an episode is asked for by: of it the prompt depends on Name,
	// Strategy, Rounds, Judge, Language, Tools, ContextLength and MaxTokens.
	Request episodes.Request `json:"request"`
}

// Options is what a corpus is made with.
type Options struct {
	// Hardware works side by side, each on one task: several of one device are to share
	// what excludes others there.
	Hardware []Hardware
	// Episodes is what episodes are made of: Prompts, Skills, Form, Judge and Settings.
	Episodes episodes.Options
	Out      string         // the file of pairs; its record lies beside it
	Log      *slog.Logger   // may be nil
	Progress func(Progress) // may be nil; of one goroutine at a time
}

// Progress is how far a corpus is.
type Progress struct {
	Tasks, Of int
	Pairs     int
	Task      string // the one that was done last
}

// Pair is a line of a corpus.
type Pair struct {
	Prompt    []episodes.Message `json:"prompt"`
	Answer    string             `json:"answer"`
	Task      string             `json:"task"`      // its fingerprint
	Candidate string             `json:"candidate"` // kernelwright.HashText of the source that is in the answer
	Schedule  map[string]int     `json:"schedule"`  // its knobs
}

// Counts is what came of making a corpus.
type Counts struct {
	Tasks    int `json:"tasks"`
	Taught   int `json:"taught"` // tasks with a pair
	Pairs    int `json:"pairs"`
	Verdicts int `json:"verdicts"`
	Cached   int `json:"cached"` // of these, remembered
	// Left is why tasks and candidates are in no pair: how many of each reason.
	Left map[string]int `json:"left"`
	// Seconds is where the time went: "inspect", "prompt", "write", "verify", as the sum
	// over devices, and the verdicts' own parts as "verify: build", ...
	Seconds map[string]float64 `json:"seconds"`
}

func newCounts() Counts { return Counts{Left: map[string]int{}, Seconds: map[string]float64{}} }

func (c *Counts) add(o Counts) {
	c.Tasks, c.Taught, c.Pairs = c.Tasks+o.Tasks, c.Taught+o.Taught, c.Pairs+o.Pairs
	c.Verdicts, c.Cached = c.Verdicts+o.Verdicts, c.Cached+o.Cached
	for why, n := range o.Left {
		c.Left[why] += n
	}
	for part, s := range o.Seconds {
		c.Seconds[part] += s
	}
}

// Why a task or a candidate is in no pair.
const (
	leftInvalid  = "task: it is none any more"
	leftDeclined = "task: the built-in Coder declines it"
	leftPrompt   = "task: no prompt fits the policy's context"
	leftTwice    = "task: its text is another one's"
	leftLong     = "candidate: its answer is too long"
	leftSame     = "candidate: the text is that of another answer"
	leftVerdict  = "candidate: " // and its status
)

// HeldOutError says that a task is held out, so that nothing may be learned of it.
type HeldOutError struct{ Task, Split string }

func (e *HeldOutError) Error() string {
	return fmt.Sprintf("task %.12s is held out: it is of the split %s", e.Task, e.Split)
}

// teacher works on one corpus.
type teacher struct {
	Settings
	Options
}

// lesson is what came of one task.
type lesson struct {
	Task   string             `json:"task"`
	Prompt []episodes.Message `json:"prompt,omitempty"`
	Pairs  []answered         `json:"pairs,omitempty"`
	Counts Counts             `json:"counts"`
}

// answered is a pair without its prompt.
type answered struct {
	Answer    string         `json:"answer"`
	Candidate string         `json:"candidate"`
	Schedule  map[string]int `json:"schedule"`
}

// teach makes the pairs of one task.
func (t *teacher) teach(ctx context.Context, h Hardware, of tasks.Task) (lesson, error) {
	l := lesson{Task: of.Fingerprint, Counts: newCounts()}
	l.Counts.Tasks = 1
	clock := stopwatch{l.Counts.Seconds, time.Now()}
	r := t.Request
	r.Reference = of.Source
	task, err := h.Inspect(ctx, cmp.Or(r.Name, "reference"), of.Source)
	clock.lap("inspect")
	if l.leaves(err, leftInvalid, new(*kernelwright.InvalidTaskError)) {
		return l, nil
	} else if err != nil {
		return l, err
	}
	l.Prompt, err = episodes.First(ctx, t.Episodes, r, task, h.Device())
	clock.lap("prompt")
	if l.leaves(err, leftPrompt, new(*episodes.BadError)) {
		return l, nil
	} else if err != nil {
		return l, err
	}
	space, err := coder.Builtin{}.Space(ctx, kernelwright.CoderInput{Task: task, Device: h.Device(), Language: r.Language})
	if l.leaves(err, leftDeclined, new(*kernelwright.DeclinedError)) {
		return l, nil
	} else if err != nil {
		return l, err
	}
	err = t.draw(ctx, h, task, space, &l, clock)
	if len(l.Pairs) > 0 {
		l.Counts.Taught, l.Counts.Pairs = 1, len(l.Pairs)
	}
	return l, err
}

// leaves counts the task as left out where the error is of a kind that says so.
func (l *lesson) leaves(err error, why string, kind any) bool {
	if err == nil || !errors.As(err, kind) {
		return false
	}
	l.Counts.Left[why]++
	l.Prompt = nil
	return true
}

// draw has candidates drawn and verified until there are enough pairs.
func (t *teacher) draw(ctx context.Context, h Hardware, task kernelwright.Task, space *coder.Space, l *lesson, clock stopwatch) error {
	var failed error
	next, stop := iter.Pull(func(yield func(point int64) bool) {
		failed = space.Walk(ctx, t.seed(l.Task), mostLooked, func(point int64, _ string) bool { return yield(point) })
	})
	defer stop()
	clock.lap("write")
	seen := map[string]bool{}
	each := cmp.Or(t.Each, DefaultEach)
	for tried := 0; len(l.Pairs) < each && tried < triesForEach*each; {
		drafts, err := t.write(space, next, min(each-len(l.Pairs), triesForEach*each-tried), seen, l)
		clock.lap("write")
		if err = cmp.Or(err, failed); err != nil {
			return err
		}
		if len(drafts) == 0 {
			return nil
		}
		tried += len(drafts)
		if err := t.verify(ctx, h, task, drafts, l); err != nil {
			return err
		}
		clock.lap("verify")
	}
	return nil
}

// mostLooked is how many points are looked at for the pairs of one task: beyond it a
// space that comes to few programs has none that is new.
const mostLooked = 1 << 12

// draft is an answer that is to be verified.
type draft struct {
	answered
	candidate kernelwright.Candidate
}

// write makes the next answers, at most so many.
func (t *teacher) write(space *coder.Space, next func() (int64, bool), most int, seen map[string]bool, l *lesson) (drafts []draft, err error) {
	for len(drafts) < most {
		point, more := next()
		if !more {
			return drafts, nil
		}
		c, err := space.Candidate(point)
		if err != nil {
			return nil, err
		}
		answer := coder.Answer(c)
		read, err := coder.Read(answer, t.Request.Language, c.Origin)
		if err != nil {
			return nil, fmt.Errorf("the built-in Coder's answer cannot be read: %w", err)
		}
		switch {
		case seen[read.Source]:
			l.Counts.Left[leftSame]++
			continue
		case t.MaxBytes > 0 && len(answer) > t.MaxBytes:
			l.Counts.Left[leftLong]++
			continue
		}
		seen[read.Source] = true
		knobs := map[string]int{}
		if s, ok := kernelwright.ParseSchedule(c.Source); ok {
			for name, k := range s.Knobs {
				knobs[name] = k.Value
			}
		}
		drafts = append(drafts, draft{answered{answer, kernelwright.HashText(read.Source), knobs}, read})
	}
	return drafts, nil
}

// verify keeps those that are right.
func (t *teacher) verify(ctx context.Context, h Hardware, task kernelwright.Task, drafts []draft, l *lesson) error {
	candidates := make([]kernelwright.Candidate, len(drafts))
	for i, d := range drafts {
		candidates[i] = d.candidate
	}
	return h.EvaluateBatch(ctx, task, candidates, kernelwright.Quick, func(i int, v kernelwright.Verdict) error {
		l.Counts.Verdicts++
		if v.Cached {
			l.Counts.Cached++
		} else {
			for part, s := range v.CostS {
				if part != "total" {
					l.Counts.Seconds["verify: "+part] += s
				}
			}
		}
		if !v.Status.OK() {
			l.Counts.Left[leftVerdict+string(v.Status)]++
			t.Log.Warn("a candidate of the built-in Coder is not right", "task", l.Task, "status", v.Status, "reason", v.Reason, "candidate", drafts[i].Candidate)
			return nil
		}
		l.Pairs = append(l.Pairs, drafts[i].answered)
		return nil
	})
}

// seed is that of a task's schedules: the same whatever else is in the corpus.
func (s Settings) seed(task string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(s.Seed)))
	_, _ = h.Write([]byte(task))
	return h.Sum64()
}

// stopwatch adds up where time goes.
type stopwatch struct {
	into  map[string]float64
	since time.Time
}

func (w *stopwatch) lap(part string) {
	now := time.Now()
	w.into[part] += now.Sub(w.since).Seconds()
	w.since = now
}
