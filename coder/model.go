package coder

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
)

// Form is how a language model writes candidates in CUDA.
type Form string

// The forms of CUDA. The native form builds some twenty times as fast.
const (
	Native     Form = "native"
	LoadInline Form = "load_inline"
)

// Model is a Coder that asks a language model once a round. It is shown the
// task, the device, its last candidate and the feedback on it, never the talk
// before. What it says is foreign text: a candidate is found in it, or
// *kernelwright.UnusableError says what is wrong with it.
type Model struct {
	LLM     llm.Model
	Prompts *prompts.Templates
	Skills  *prompts.Skills // nil for none
	Form    Form            // of candidates in CUDA; empty means Native
}

// Name is the language model's.
func (m Model) Name() string { return m.LLM.Name() }

// Propose asks for the candidate of a round. A language that the device does not
// run is declined. Errors of the language model are returned as they are.
func (m Model) Propose(ctx context.Context, in kernelwright.CoderInput) (kernelwright.Candidate, error) {
	if err := ctx.Err(); err != nil {
		return kernelwright.Candidate{}, err
	}
	form, err := m.form(in)
	if err != nil {
		return kernelwright.Candidate{}, err
	}
	what, view := m.view(in, form)
	key := llm.Key{Run: in.Run, Round: in.Round, Agent: "coder"}
	reply, err := llm.Ask(ctx, m.LLM, key, m.short, func(w llm.Window) (llm.Request, []string, error) { return m.request(in, what, view, w) })
	if err != nil {
		return kernelwright.Candidate{}, err
	}
	return read(reply, in.Language, m.Name())
}

// leastReply is what a candidate takes at least, in tokens: the shortest that are
// written by hand have some 350.
const leastReply = 512

// short says whether a model with this window is asked in few words.
func (m Model) short(w llm.Window) bool { return m.Prompts.Profile.Compact(m.Name(), w.Context) }

// request is the question, as much of it as the window holds, and what is left out.
func (m Model) request(in kernelwright.CoderInput, what prompts.CoderPrompt, view prompts.CoderView, w llm.Window) (llm.Request, []string, error) {
	seed := callSeed(in.Seed, in.Round)
	var r llm.Request
	write := func(system, user string) {
		r = llm.Request{
			Task: in.Task.Name,
			Messages: []llm.Message{
				{Role: llm.System, Text: system, Shared: len(system)},
				{Role: llm.User, Text: user, Shared: prompts.SharedPrefix(user, view.Reference, view.Task, view.Device)},
			},
			Seed: &seed,
		}
	}
	view.Compact, view.MayCompact = w.Compact, m.Prompts.Profile != prompts.ProfileFull
	p, fits, err := m.Prompts.FitCoder(what, view, func(system, user string) bool {
		write(system, user)
		return w.Holds(r, leastReply)
	})
	if err != nil {
		return r, nil, fmt.Errorf("make the prompt %s: %w", what, err)
	}
	write(p.System, p.User)
	if !fits && !w.HoldsJust(r, leastReply) {
		return r, nil, llm.ErrNoFit
	}
	return r, p.LeftOut, nil
}

// form is how the candidate is to be written. Where nobody says in which
// language, it is the first of the device.
func (m Model) form(in kernelwright.CoderInput) (prompts.Form, error) {
	on := kernelwright.LanguagesOn(in.Device.Kind)
	language := cmp.Or(in.Language, on[0])
	if !slices.Contains(on, language) {
		runs := strings.ReplaceAll(fmt.Sprintf("%s", on), " ", " or ")
		return "", &kernelwright.DeclinedError{Reason: fmt.Sprintf("candidates in %s do not run on the device %s, which takes %s", language, in.Device, strings.Trim(runs, "[]"))}
	}
	if language == kernelwright.CUDA && m.Form == LoadInline {
		return prompts.FormLoadInline, nil
	}
	return prompts.Form(language), nil
}

// view is what the model is shown, and what it is asked for.
func (m Model) view(in kernelwright.CoderInput, form prompts.Form) (prompts.CoderPrompt, prompts.CoderView) {
	v := prompts.CoderView{
		Form:      form,
		GPU:       in.Device.Kind == kernelwright.CUDADevice,
		Reference: prompts.Fence("reference", in.Task.Source, prompts.MaxReferenceBytes),
		Task:      prompts.TaskFacts(in.Task),
		Device:    prompts.DeviceFacts(in.Device),
		Brief:     prompts.Brief(in.Task, in.Device),
		Sample:    in.Sample,
		// What was rejected may not have the form at all.
		ShowExample: in.Last == nil || in.Last.Verdict.Status == kernelwright.Rejected || in.Unusable != nil,
	}
	if in.Unusable != nil {
		v.Unusable = prompts.AnswerFacts(*in.Unusable)
	}
	what := prompts.CoderSeed
	if in.Feedback == nil && in.View != kernelwright.ViewScore { // else a Judge has read them
		v.Lessons = prompts.Lessons(in.Lessons, in.Task, "")
	}
	var words []string // what skills are chosen by
	if in.Last != nil {
		what, words = last(in, &v)
	}
	if m.Skills != nil {
		q, most := prompts.QueryFor(in.Task, in.Device, form.Language(), words...), prompts.SkillsToFind
		if in.Last != nil && in.View != kernelwright.ViewScore { // else what is shown would tell what is not
			q.Status = in.Last.Verdict.Status
			if v.Feedback != "" || !v.Correct {
				most = prompts.SkillsToMend
			}
		}
		v.Skills = m.Skills.Excerpt(q, most)
	}
	return what, v
}

// last puts into the view what is to be seen of the last candidate.
func last(in kernelwright.CoderInput, v *prompts.CoderView) (what prompts.CoderPrompt, words []string) {
	verdict := in.Last.Verdict
	v.Candidate = prompts.Fence("last answer", in.Last.Candidate.Source, prompts.MaxCandidateBytes)
	v.Correct = verdict.Status.OK()
	v.Repeats = in.SameAs != nil
	if in.View == kernelwright.ViewScore {
		v.Score = prompts.Score(verdict)
		if verdict.Status == kernelwright.Rejected {
			v.Verdict = prompts.VerdictFacts(verdict)
		}
		return prompts.CoderScore, nil
	}
	v.Verdict = prompts.VerdictFacts(verdict)
	v.Compiler, v.Output = prompts.OutputFacts(verdict)
	words = []string{string(verdict.Status), verdict.Reason}
	if in.View == kernelwright.ViewMetrics {
		v.Metrics, _ = prompts.Metrics(verdict, in.FullMetrics)
		v.Build = prompts.BuildFacts(verdict)
		return prompts.CoderSelf, words
	}
	if f := in.Feedback; f != nil {
		v.Feedback = prompts.FeedbackFacts(*f)
		if v.Correct {
			words = nil // that it is correct says nothing of what holds it up
		}
		words = append(words, f.Rule, f.Bottleneck, f.Method, f.Issue, f.Why)
	}
	if v.Correct {
		return prompts.CoderOptimisation, words
	}
	return prompts.CoderCorrection, words
}

// callSeed mixes a run's seed with a round's number. It fits 31 bits, which is
// what all servers take.
func callSeed(seed int64, round int) int64 {
	h := fnv.New32a()
	b := binary.LittleEndian.AppendUint64(nil, uint64(seed))
	_, _ = h.Write(binary.LittleEndian.AppendUint64(b, uint64(round)))
	return int64(h.Sum32() >> 1)
}

// kept is as much of an unusable answer as is kept.
func kept(answer string) string {
	return strings.ToValidUTF8(prompts.Shorten(answer, prompts.MaxCandidateBytes), "\uFFFD")
}
