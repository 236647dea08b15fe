package prompts

import (
	"fmt"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// Profile says in how many words a model is asked.
type Profile string

// The profiles. In the automatic one a model is asked in few words whose context has
// at most CompactContext tokens, and a policy in training.
const (
	ProfileAuto    Profile = "auto"
	ProfileFull    Profile = "full"
	ProfileCompact Profile = "compact"
)

// Profiles are all of them.
var Profiles = []Profile{ProfileAuto, ProfileFull, ProfileCompact}

// CompactContext is the longest context, in tokens, whose model is asked in few words.
const CompactContext = 4096

// Compact reports whether a model of that name and context (in tokens; 0: not known)
// is asked in few words.
func (p Profile) Compact(model string, context int) bool {
	switch p {
	case ProfileFull:
		return false
	case ProfileCompact:
		return true
	}
	return context > 0 && context <= CompactContext || strings.HasPrefix(model, kernelwright.PolicyPrefix) || strings.HasPrefix(model, kernelwright.TrainingPrefix)
}

// How much is left of what is shortened before it goes.
const (
	manyMetrics  = 12 // lines
	fewMetrics   = 6
	fewRounds    = 2 // and a line on what came of them
	fewCompiler  = 800
	shortOutput  = 300
	shortAnswers = 4 // steps in which a candidate is shortened, to a quarter
)

// A Cut is a part of a prompt that goes where all of it does not fit.
type Cut struct {
	Name string // as it is recorded
	Of   string // whose prompts have it: "Coder", "Judge" or "both"

	coder func(*CoderView)
	judge func(*JudgeView)
}

// Cuts are what goes where a prompt does not fit a model's context, first what goes
// first. What is not here never goes: the reference, the verdict, a feedback, what was
// wrong with an answer without a candidate, and the form that an answer has to have. Of react, which has a talk, forge has its own.
var Cuts = func() []Cut {
	cut := func(name string, coder func(*CoderView), judge func(*JudgeView)) Cut {
		of := "both"
		if judge == nil {
			of = "Coder"
		} else if coder == nil {
			of = "Judge"
		}
		return Cut{name, of, coder, judge}
	}
	all := []Cut{
		cut("lessons", func(v *CoderView) { v.Lessons = "" }, func(v *JudgeView) { v.Lessons = "" }),
		cut("skills", func(v *CoderView) { v.Skills = nil }, func(v *JudgeView) { v.Skills = nil }),
		cut("earlier rounds but the last two", nil, func(v *JudgeView) { v.Earlier = v.Earlier.lastLines(fewRounds + 1) }),
		cut(fmt.Sprintf("metrics beyond the first %d", manyMetrics), func(v *CoderView) { v.Metrics = v.Metrics.firstLines(manyMetrics) },
			func(v *JudgeView) { v.Metrics = v.Metrics.firstLines(manyMetrics) }),
		cut("the example", func(v *CoderView) { v.ShowExample = false }, nil),
		cut("build and work", func(v *CoderView) { v.Build = "" }, func(v *JudgeView) { v.Build = "" }),
		cut("earlier rounds", nil, func(v *JudgeView) { v.Earlier = "" }),
		cut("our own words in full", func(v *CoderView) { v.Compact = v.Compact || v.MayCompact }, func(v *JudgeView) { v.Compact = v.Compact || v.MayCompact }),
		cut("the end of the candidate's output", func(v *CoderView) { v.Output = "" }, func(v *JudgeView) { v.Output = "" }),
		cut(fmt.Sprintf("metrics beyond the first %d", fewMetrics), func(v *CoderView) { v.Metrics = v.Metrics.firstLines(fewMetrics) },
			func(v *JudgeView) { v.Metrics = v.Metrics.firstLines(fewMetrics) }),
		cut("the middle of the compiler's output", func(v *CoderView) { v.Compiler = v.Compiler.shorten(fewCompiler) }, func(v *JudgeView) { v.Compiler = v.Compiler.shorten(fewCompiler) }),
		cut("task and device", func(v *CoderView) { v.Task, v.Device, v.Brief = "", "", "" }, func(v *JudgeView) { v.Task, v.Device, v.Brief = "", "", "" }),
		cut("the compiler's output", func(v *CoderView) { v.Compiler = "" }, func(v *JudgeView) { v.Compiler = "" }),
		cut("the rules' finding", nil, func(v *JudgeView) { v.Finding = "" }),
	}
	for i := 1; i < shortAnswers; i++ {
		of := shortAnswers - i
		all = append(all, cut(fmt.Sprintf("the middle of the candidate, to %d/%d", of, shortAnswers),
			func(v *CoderView) { v.Candidate = v.Candidate.shortenTo(of, shortAnswers-i+1) }, func(v *JudgeView) { v.Candidate = v.Candidate.shortenTo(of, shortAnswers-i+1) }))
	}
	return append(all, cut("its own last answer", func(v *CoderView) { v.Candidate = "" }, nil))
}()

// Prompt is the two messages in which a model is asked, and what they leave out, in
// the order in which it went.
type Prompt struct {
	System, User string
	LeftOut      []string
}

// FitCoder returns the prompt as Coder does, with as little left out by Cuts as it
// takes until fits; it is false where nothing more can go.
func (t *Templates) FitCoder(what CoderPrompt, v CoderView, fits func(system, user string) bool) (Prompt, bool, error) {
	return fit(v, fits, func(v CoderView) (string, string, error) { return t.Coder(what, v) }, func(c Cut) func(*CoderView) { return c.coder })
}

// FitJudge does so with a Judge's.
func (t *Templates) FitJudge(what JudgePrompt, v JudgeView, fits func(system, user string) bool) (Prompt, bool, error) {
	return fit(v, fits, func(v JudgeView) (string, string, error) { return t.Judge(what, v) }, func(c Cut) func(*JudgeView) { return c.judge })
}

func fit[V any](v V, fits func(string, string) bool, write func(V) (string, string, error), of func(Cut) func(*V)) (Prompt, bool, error) {
	var p Prompt
	var err error
	if p.System, p.User, err = write(v); err != nil {
		return p, false, err
	}
	for _, c := range Cuts {
		if fits(p.System, p.User) {
			return p, true, nil
		}
		shorten := of(c)
		if shorten == nil {
			continue
		}
		next := v
		shorten(&next)
		system, user, err := write(next)
		if err != nil {
			return p, false, err
		}
		if len(system)+len(user) >= len(p.System)+len(p.User) {
			continue // it was not there
		}
		v, p.System, p.User, p.LeftOut = next, system, user, append(p.LeftOut, c.Name)
	}
	return p, fits(p.System, p.User), nil
}

// compact leaves of a view what a compact prompt shows.
func (v CoderView) compact() CoderView {
	v.Skills, v.Lessons, v.Build, v.ShowExample = nil, "", "", false
	v.Metrics, v.Compiler, v.Output = v.Metrics.firstLines(fewMetrics), v.Compiler.shorten(fewCompiler), v.Output.shorten(shortOutput)
	return v
}

func (v JudgeView) compact() JudgeView {
	v.Skills, v.Lessons, v.Build, v.Earlier = nil, "", "", v.Earlier.lastLines(fewRounds+1)
	v.Metrics, v.Compiler, v.Output = v.Metrics.firstLines(manyMetrics), v.Compiler.shorten(fewCompiler), v.Output.shorten(shortOutput)
	return v
}

// apart takes data into the line that opens it, its text, and the line that closes it.
func (d Data) apart() (head, text, tail string) {
	head, rest, ok := strings.Cut(string(d), "\n")
	at := strings.LastIndexByte(rest, '\n')
	if !ok || at < 0 {
		return "", "", ""
	}
	return head + "\n", rest[:at+1], rest[at+1:]
}

// firstLines are the first lines, and one that says how many more there were.
func (d Data) firstLines(n int) Data {
	head, text, tail := d.apart()
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) <= n+1 {
		return d
	}
	return Data(fmt.Sprintf("%s%s[%d more lines are left out]\n%s", head, strings.Join(lines[:n], ""), len(lines)-n, tail))
}

// lastLines are the last lines, after one that says how many there were before.
func (d Data) lastLines(n int) Data {
	head, text, tail := d.apart()
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) <= n+1 {
		return d
	}
	return Data(fmt.Sprintf("%s[%d lines before these are left out]\n%s\n%s", head, len(lines)-n, strings.Join(lines[len(lines)-n:], ""), tail))
}

// shorten leaves out the middle of what is longer than so many bytes.
func (d Data) shorten(limit int) Data {
	head, text, tail := d.apart()
	if len(text) <= limit {
		return d
	}
	return Data(head + strings.TrimSuffix(Shorten(text, limit), "\n") + "\n" + tail)
}

// shortenTo leaves out the middle, so that part of whole is left.
func (d Data) shortenTo(part, whole int) Data {
	_, text, _ := d.apart()
	return d.shorten(len(text) * part / whole)
}

// shown is the view in one profile or the other.
func (v CoderView) shown(compact bool) CoderView { v.Compact = compact; return v }

func (v JudgeView) shown(compact bool) JudgeView { v.Compact = compact; return v }
