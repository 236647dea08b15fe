package main

import (
	"context"
	_ "embed" // run.json
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
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
	w, err := newWriter(ctx, db.Path())
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
		t.Operators = drawOperators(rng)
		tasks[i] = t
	}
	if _, err := db.Task(ctx, tasks[len(tasks)-1].Fingerprint); err == nil {
		return tasks, nil // the last one is there: all are
	}
	for _, d := range devices(o.Device) {
		if err := db.SaveDevice(ctx, d); err != nil {
			return nil, err
		}
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
func popular(rng *rand.Rand, n int) int { return rank(rng, n, 5) }

// rank draws one of n, the first most often.
func rank(rng *rand.Rand, n int, steep float64) int {
	return min(int(float64(n)*math.Pow(rng.Float64(), steep)), n-1)
}

// createdMS is when a run was created: a hundred thousand make a year.
func createdMS(run int64) int64 { return 1_764_460_800_000 + run*315_000 }

// What runs differ by, the most frequent first.
var (
	coders    = []string{"builtin", "anthropic:a-model", "openai:another-model", "policy:current", "local:small", "google:some-model", "local:large", "openai:old-model", "local:tiny", "mistral:rare-model"}
	operators = []string{
		"softmax", "linear", "conv2d", "relu", "layer_norm", "mul", "add", "gelu", "matmul", "sum", "mean", "batch_norm", "max_pool2d", "sigmoid", "tanh", "sub", "div", "transpose", "cat", "bmm",
		"group_norm", "silu", "exp", "log", "amax", "cumsum", "dropout", "embedding", "avg_pool2d", "conv1d", "conv_transpose2d", "argmax", "pow", "sqrt", "clamp", "where", "gather", "scatter", "topk", "sort",
		"instance_norm", "log_softmax", "cross_entropy", "nll_loss", "mse_loss", "huber_loss", "lstm_cell", "gru_cell", "hardtanh", "hardswish", "leaky_relu", "elu", "selu", "softplus", "mish", "prod",
		"std", "var", "norm", "index_select", "roll", "flip", "pad", "upsample", "conv3d", "max_pool3d", "rms_norm", "einsum", "logsumexp", "cumprod", "tril", "triu", "diag", "outer", "erf", "cosine_similarity",
	}
)

// drawOperators draws one to six.
func drawOperators(rng *rand.Rand) (all []string) {
	for range 1 + rng.IntN(6) {
		all = append(all, "aten."+operators[rank(rng, len(operators), 2)])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// devices are the one that was recorded and some that were not: their figures are its.
func devices(cpu kernelwright.Device) []kernelwright.Device {
	all := []kernelwright.Device{cpu}
	for i, name := range []string{"NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA GeForce RTX 5090"} {
		d := cpu
		d.Kind, d.Name, d.Key = kernelwright.CUDADevice, name, fmt.Sprintf("cuda-%016x", i+1)
		all = append(all, d)
	}
	return all
}

func drawDevice(rng *rand.Rand, cpu kernelwright.Device) (kernelwright.Device, kernelwright.Language) {
	all := devices(cpu)
	i := rank(rng, len(all), 2)
	switch {
	case i == 0:
		return all[i], kernelwright.CPP
	case rng.IntN(10) < 7:
		return all[i], kernelwright.CUDA
	}
	return all[i], kernelwright.Triton
}

// scaled is a speedup of another size.
func scaled(s *kernelwright.Speedup, by float64) *kernelwright.Speedup {
	if s == nil {
		return nil
	}
	return &kernelwright.Speedup{Value: s.Value * by, Low: s.Low * by, High: s.High * by, Against: s.Against}
}

// drawVerdict is a verdict as the pattern's, with numbers of its own.
func (p pattern) drawVerdict(rng *rand.Rand) (v kernelwright.Verdict, err error) {
	return v, json.Unmarshal([]byte(p.verdict.draw(rng)), &v)
}

// draw makes the run of a number.
func draw(s settings, o original, all []pattern, tasks []kernelwright.Task, id int64) (drawn, error) {
	rng := rand.New(rand.NewPCG(s.seed, uint64(id)+1))
	t := tasks[popular(rng, len(tasks))]
	now := createdMS(id)
	device, language := drawDevice(rng, o.Device)
	coder := coders[rank(rng, len(coders), 2)]
	d := drawn{run: kernelwright.Run{
		ID: id, Task: t.Fingerprint, TaskName: t.Name, Path: "/home/someone/kernels/" + t.Name + ".py", Device: device.String(), DeviceKey: device.Key,
		Strategy: []string{"rounds", "beam", "react"}[rank(rng, 3, 2)], Coder: coder, Judge: "rules", MaxRounds: s.perRun, CreatedMS: now, StartedMS: now, FinishedMS: now + 50_000,
		Settings: `{"rounds":10,"wall_time_ms":600000,"headroom_stop":0.95,"patience":4,"judge":"both","language":"` + string(language) + `"}`,
		Status:   kernelwright.RunDone, Stop: kernelwright.StopRounds,
	}}
	if coder != coders[0] {
		d.run.Judge = coder
	}
	switch rng.IntN(50) {
	case 0:
		d.run.Status, d.run.Stop, d.run.Reason = kernelwright.RunFailed, "", "the evaluation: not there after 10m0s"
	case 1:
		d.run.Status, d.run.Stop, d.run.Reason = kernelwright.RunCancelled, "", "somebody cancelled it"
	}
	factor := math.Exp(rng.NormFloat64() / 2) // of the run's speedups
	best, least := -1, math.Inf(1)
	var err error
	for index := range s.perRun {
		p := all[index%len(all)]
		r := p.round
		r.RunID, r.Index, r.StartedMS, r.FinishedMS = id, index, now+int64(index)*5000, now+int64(index)*5000+4000
		r.Candidate.Source = p.source.draw(rng)
		if r.Verdict, err = p.drawVerdict(rng); err != nil {
			return d, err
		}
		if err := json.Unmarshal([]byte(p.feedback.draw(rng)), &r.Feedback); err != nil {
			return d, err
		}
		r.Candidate.Language = language
		r.Verdict.Task, r.Verdict.Speedup = t.Fingerprint, scaled(r.Verdict.Speedup, factor)
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
		v.Task, v.CandidateMS, v.Speedup, v.Exported = t.Fingerprint, least, scaled(v.Speedup, factor), p.exported.draw(rng)
		v.ExportedSHA256 = kernelwright.HashText(v.Exported)
		d.rounds[best].Certificate = &v
		break
	}
	return d, nil
}
