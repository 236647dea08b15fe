package main

import (
	"context"
	_ "embed" // run.json
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

//go:embed run.json
var recorded []byte

// template is a text whose numbers are drawn anew each time.
type template struct {
	literal []string // one more than numbers
	numbers []string
}

func newTemplate(text string, number *regexp.Regexp) template {
	var t template
	end := 0
	for _, at := range number.FindAllStringIndex(text, -1) {
		t.literal, t.numbers = append(t.literal, text[end:at[0]]), append(t.numbers, text[at[0]:at[1]])
		end = at[1]
	}
	t.literal = append(t.literal, text[end:])
	return t
}

// draw returns the text with other digits in its numbers, as long as before.
func (t template) draw(rng *rand.Rand) string {
	var b []byte
	for i, literal := range t.literal {
		b = append(b, literal...)
		if i == len(t.numbers) {
			break
		}
		for j := range len(t.numbers[i]) {
			switch c := t.numbers[i][j]; {
			case c == '.':
				b = append(b, '.')
			case j == 0: // no number begins with 0 that did not, and none is 0
				b = append(b, byte('0'+min(1+rng.IntN(9), 1+int(c-'0'))))
			default:
				b = append(b, byte('0'+rng.IntN(10)))
			}
		}
	}
	return string(b)
}

var (
	fractions = regexp.MustCompile(`\d+\.\d{4,}`) // what was measured: all digits vary
	sizes     = regexp.MustCompile(`\b\d{4}\b`)   // in sources: shapes and tiles
)

// pattern is one real round to draw from.
type pattern struct {
	round                     kernelwright.Round // without its texts
	source, verdict, feedback template
	certificate, exported     *template
}

type original struct {
	Task   kernelwright.Task    `json:"task"`
	Device kernelwright.Device  `json:"device"`
	Rounds []kernelwright.Round `json:"rounds"`
}

func patterns() (original, []pattern, error) {
	var o original
	if err := json.Unmarshal(recorded, &o); err != nil {
		return o, nil, err
	}
	var all []pattern
	for _, r := range o.Rounds {
		p := pattern{source: newTemplate(r.Candidate.Source, sizes)}
		text := func(v any) (template, error) {
			b, err := json.Marshal(v)
			return newTemplate(string(b), fractions), err
		}
		var err error
		if p.verdict, err = text(r.Verdict); err != nil {
			return o, nil, err
		}
		if p.feedback, err = text(r.Feedback); err != nil {
			return o, nil, err
		}
		if c := r.Certificate; c != nil {
			exported := newTemplate(c.Exported, sizes)
			c.Exported = ""
			certificate, err := text(c)
			if err != nil {
				return o, nil, err
			}
			p.exported, p.certificate = &exported, &certificate
		}
		r.Candidate.Source, r.Verdict, r.Feedback, r.Certificate = "", kernelwright.Verdict{}, nil, nil
		p.round = r
		all = append(all, p)
	}
	return o, all, nil
}

// fill records what is missing of s.rounds. It may be interrupted, and goes on
// from there the next time: what a run holds follows from its number alone.
func fill(ctx context.Context, db *store.Store, s settings) error {
	o, all, err := patterns()
	if err != nil {
		return err
	}
	tasks, err := saveTasks(ctx, db, s, o)
	if err != nil {
		return err
	}
	w, err := newWriter(ctx, db.Path(), o.Device.Key)
	if err != nil {
		return err
	}
	defer func() { _ = w.db.Close() }() // what was committed stays
	began, first, runs := time.Now(), w.runs, int64(s.rounds/s.perRun)
	err = w.write(ctx, first, runs, func(run int64) (drawn, error) { return draw(s, o, all, tasks, run) })
	if n := w.runs - first; n > 0 {
		fmt.Printf("%d rounds recorded in %v, %d in all\n", n*int64(s.perRun), time.Since(began).Round(time.Second), w.runs*int64(s.perRun))
	}
	return err
}

func saveTasks(ctx context.Context, db *store.Store, s settings, o original) ([]kernelwright.Task, error) {
	rng := rand.New(rand.NewPCG(s.seed, 0))
	source := newTemplate(o.Task.Source, sizes)
	tasks := make([]kernelwright.Task, s.tasks)
	for i := range tasks {
		t := o.Task
		t.Name = fmt.Sprintf("task_%05d", i)
		t.Source = source.draw(rng) + fmt.Sprintf("\n# %s\n", t.Name)
		t.Fingerprint = kernelwright.HashText(t.Source)
		tasks[i] = t
	}
	if _, err := db.Task(ctx, tasks[len(tasks)-1].Fingerprint); err == nil {
		return tasks, nil // the last one is there: all are
	}
	if err := db.SaveDevice(ctx, o.Device); err != nil {
		return nil, err
	}
	for _, t := range tasks {
		if err := db.SaveTask(ctx, t); err != nil {
			return nil, err
		}
	}
	return tasks, nil
}

// popular draws a task so that its frequency falls with its rank: of 100,000
// runs the first of 20,000 tasks has some 14,000, most have one or two.
func popular(rng *rand.Rand, n int) int {
	return min(int(float64(n)*math.Pow(rng.Float64(), 5)), n-1)
}

// draw makes the run of a number.
func draw(s settings, o original, all []pattern, tasks []kernelwright.Task, id int64) (drawn, error) {
	rng := rand.New(rand.NewPCG(s.seed, uint64(id)+1))
	t := tasks[popular(rng, len(tasks))]
	now := int64(1_750_000_000_000) + id*60_000
	d := drawn{run: kernelwright.Run{
		ID: id, Task: t.Fingerprint, TaskName: t.Name, Path: "/home/someone/kernels/" + t.Name + ".py", Device: "cpu", DeviceKey: o.Device.Key,
		Strategy: "rounds", Coder: "builtin", Judge: "rules", MaxRounds: s.perRun, CreatedMS: now, StartedMS: now, FinishedMS: now + 50_000,
		Settings: `{"rounds":10,"wall_time_ms":600000,"headroom_stop":0.95,"patience":4,"judge":"both","language":"cpp"}`,
		Status:   kernelwright.RunDone, Stop: kernelwright.StopRounds,
	}}
	if rng.IntN(50) == 0 {
		d.run.Status, d.run.Stop, d.run.Reason = kernelwright.RunFailed, "", "the evaluation: not there after 10m0s"
	}
	best, least := -1, math.Inf(1)
	for index := range s.perRun {
		p := all[index%len(all)]
		r := p.round
		r.RunID, r.Index, r.StartedMS, r.FinishedMS = id, index, now+int64(index)*5000, now+int64(index)*5000+4000
		r.Candidate.Source = p.source.draw(rng)
		if err := json.Unmarshal([]byte(p.verdict.draw(rng)), &r.Verdict); err != nil {
			return d, err
		}
		if err := json.Unmarshal([]byte(p.feedback.draw(rng)), &r.Feedback); err != nil {
			return d, err
		}
		r.Verdict.Task = t.Fingerprint
		if rng.IntN(4) == 0 { // a quarter of what is tried fails
			r.Verdict.Status, r.Verdict.CandidateMS, r.Verdict.Speedup = kernelwright.Wrong, 0, nil
			r.Verdict.Reason = "on family base: " + strconv.Itoa(rng.IntN(1<<20)) + " elements differ"
		} else if r.Verdict.CandidateMS < least {
			best, least = index, r.Verdict.CandidateMS
		}
		d.rounds = append(d.rounds, r)
	}
	for _, p := range all {
		if p.certificate == nil || best < 0 {
			continue
		}
		var v kernelwright.Verdict
		if err := json.Unmarshal([]byte(p.certificate.draw(rng)), &v); err != nil {
			return d, err
		}
		v.Task, v.CandidateMS, v.Exported = t.Fingerprint, least, p.exported.draw(rng)
		v.ExportedSHA256 = kernelwright.HashText(v.Exported)
		d.rounds[best].Certificate = &v
		break
	}
	return d, nil
}
