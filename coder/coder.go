// Package coder holds the Coders. Builtin needs no model and no network: it
// plans over the captured operator graph of a task and writes C++ or CUDA.
package coder

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder/internal/emit"
	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// Builtin is the offline Coder. The same input gives the same candidate; it
// keeps nothing between calls: where it stands is read from the last
// candidate's schedule comment.
type Builtin struct{}

// Name identifies the Coder in the record.
func (Builtin) Name() string { return "builtin" }

// Propose returns the next candidate. Round 0 gets the default schedule; after
// that the feedback's knobs are applied to the last one, and after a failed
// verdict a safer schedule is taken unless the feedback names one. Where nobody
// advises it, it tries the schedules beside its first one. Lessons move the start
// and that order. It declines with *kernelwright.DeclinedError.
func (b Builtin) Propose(ctx context.Context, in kernelwright.CoderInput) (c kernelwright.Candidate, err error) {
	// The graph came from outside. An assumption that it breaks must cost one
	// run, not the daemon.
	defer func() {
		if r := recover(); r != nil {
			c, err = kernelwright.Candidate{}, declined("the operator graph breaks an assumption of the planner: %v", r)
		}
	}()
	w, knobs, err := b.writer(ctx, in)
	if err != nil {
		return kernelwright.Candidate{}, err
	}
	knobs, note := w.choose(knobs, in)
	if c, _, err = w.candidate(knobs); err == nil {
		c.Note += "; " + note
	}
	return c, err
}

// writer is who writes candidates for a task, and the schedule that they begin with.
func (b Builtin) writer(ctx context.Context, in kernelwright.CoderInput) (w writer, start plan.Knobs, err error) {
	if err := ctx.Err(); err != nil {
		return w, nil, err
	}
	language := kernelwright.CPP
	if in.Device.Kind == kernelwright.CUDADevice {
		language = kernelwright.CUDA
	}
	if in.Language != "" && in.Language != language {
		return w, nil, declined("the built-in Coder writes C++ for a CPU and CUDA for a GPU, not %s for %s", in.Language, in.Device)
	}
	if len(in.Task.Graph) == 0 {
		note := strings.TrimSuffix(in.Task.GraphNote, ".")
		if note == "" {
			note = "the task carries no operator graph"
		}
		return w, nil, declined("there is no operator graph to plan over: %s", note)
	}
	g, err := plan.DecodeGraph(in.Task.Graph)
	if err != nil {
		return w, nil, err
	}
	if language == kernelwright.CUDA {
		g = plan.Unbiased(g)
	}
	p, err := plan.Make(g, true)
	if err != nil {
		return w, nil, declined("the operator graph has no plan: %v", err)
	}
	if len(p.Covered) == 0 {
		return w, nil, declined("it covers none of the operators here: %s", strings.Join(slices.Compact(slices.Clone(p.Kept)), ", "))
	}
	p.Name = in.Task.Name
	w = writer{fused: p}
	start = plan.DefaultSchedule(p, in.Device)
	if language == kernelwright.CUDA {
		w.on = emit.GPU(in.Device)
		start = emit.CUDASchedule(p)
	}
	if _, ok := start["fuse"]; ok {
		if w.apart, err = plan.Make(g, false); err != nil {
			return w, nil, fmt.Errorf("plan without fusion: %w", err)
		}
		w.apart.Name = in.Task.Name
	}
	return w, start, nil
}

// candidate is what a schedule comes to, with a note of the plan, and the knobs as it
// states them.
func (w writer) candidate(knobs plan.Knobs) (kernelwright.Candidate, plan.Knobs, error) {
	code, err := w.code(knobs)
	if err != nil {
		return kernelwright.Candidate{}, nil, declined("the plan has no Python form: %v", err)
	}
	offered := w.offered(knobs, code)
	s := kernelwright.Schedule{Plan: describe(w.plan(knobs)), Knobs: offered}
	head, rest, _ := strings.Cut(code, "\n") // the docstring comes first
	return kernelwright.Candidate{Source: head + "\n" + s.Comment() + "\n" + rest, Language: w.language(), Origin: Builtin{}.Name(), Note: s.Plan}, offered, nil
}

// writer writes the candidates of a task.
type writer struct {
	fused, apart *plan.Plan // apart is nil where nothing can be fused
	on           emit.Target
}

func (w writer) language() kernelwright.Language {
	if w.on.GPU {
		return kernelwright.CUDA
	}
	return kernelwright.CPP
}

func (w writer) plan(knobs plan.Knobs) *plan.Plan {
	if w.apart != nil && knobs.Get("fuse", 1) == 0 {
		return w.apart
	}
	return w.fused
}

func (w writer) code(knobs plan.Knobs) (string, error) {
	return emit.Python(w.plan(knobs), knobs, w.on)
}

// offered returns the knobs with those choices alone that would change the
// code, given what the others are: a round is not spent on any other.
func (w writer) offered(knobs plan.Knobs, code string) plan.Knobs {
	out := plan.Knobs{}
	for name, k := range knobs {
		seen := map[string]bool{code: true}
		choices := []int{k.Value}
		for _, c := range k.Choices {
			if c == k.Value {
				continue
			}
			other, err := w.code(knobs.With(map[string]int{name: c}))
			if err == nil && !seen[other] {
				seen[other] = true
				choices = append(choices, c)
			}
		}
		slices.Sort(choices)
		out[name] = kernelwright.Knob{Value: k.Value, Choices: choices}
	}
	return out
}

func declined(format string, args ...any) error {
	return &kernelwright.DeclinedError{Reason: fmt.Sprintf(format, args...)}
}

// choose derives the knobs of a candidate from the plan's own, the lessons, and
// the last candidate and what was said of it.
func (w writer) choose(plain plan.Knobs, in kernelwright.CoderInput) (plan.Knobs, string) {
	start, why := learned(plain, in)
	if in.Last == nil {
		if why != "" {
			return start, "first schedule, by " + why
		}
		return start, "first schedule"
	}
	knobs := plain
	if last, ok := kernelwright.ParseSchedule(in.Last.Candidate.Source); ok {
		values := map[string]int{"pdl": 0, "approx": 0} // of versions that did not state them
		for name, k := range last.Knobs {
			values[name] = k.Value
		}
		knobs = knobs.With(values)
	}
	if in.Feedback != nil && len(in.Feedback.Knobs) > 0 {
		changed := knobs.With(in.Feedback.Knobs)
		if d := difference(knobs, changed); d != "" {
			return changed, d
		}
	}
	if s := in.Last.Verdict.Status; s != "" && !s.OK() {
		if in.Round == 1 && why != "" {
			return plain, "after " + string(s) + ", without a lesson: " + difference(knobs, plain)
		}
		if safe, ok := knobs.Safer(); ok {
			return safe, "after " + string(s) + ": " + difference(knobs, safe)
		}
		return knobs, "schedule unchanged"
	}
	if len(moved(plain, knobs)) < len(moved(start, knobs)) {
		start = plain // the lesson's start failed
	}
	if beside, why, ok := w.beside(start, in); ok {
		return beside, why
	}
	return knobs, "schedule unchanged"
}

// moved is the knobs in which two schedules of a plan differ.
func moved(a, b plan.Knobs) []kernelwright.Step {
	return kernelwright.Steps(kernelwright.Schedule{Knobs: a}, kernelwright.Schedule{Knobs: b})
}

func difference(a, b plan.Knobs) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if a[name].Value != b[name].Value {
			out = append(out, fmt.Sprintf("%s %d -> %d", name, a[name].Value, b[name].Value))
		}
	}
	return strings.Join(out, ", ")
}

// describe says in a few words what a plan does.
func describe(p *plan.Plan) string {
	kernels := 0
	for _, s := range p.Steps {
		if s.Kernel != nil {
			kernels++
		}
	}
	var ops []string
	for _, c := range p.Covered {
		c = strings.TrimPrefix(c, "aten.")
		if len(ops) == 0 || ops[len(ops)-1] != c {
			ops = append(ops, c)
		}
	}
	if len(ops) > 8 {
		ops = append(ops[:7], fmt.Sprintf("%d more", len(ops)-7))
	}
	out := strings.Join(ops, ", ")
	if kernels == 1 {
		out += " in one kernel"
	} else {
		out += fmt.Sprintf(" in %d kernels", kernels)
	}
	if n := len(p.Kept); n > 0 {
		out += fmt.Sprintf(", %d operators left to torch", n)
	}
	return out
}
