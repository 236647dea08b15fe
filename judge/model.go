package judge

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
)

// Model is a Judge that asks a language model: for exactly one issue of a failed
// candidate, or for exactly one bottleneck of a correct one. Its answer is read
// strictly and repaired once. An answer that cannot be used then costs no round:
// the built-in Judge's finding takes its place (Feedback.Unusable), as it does
// where the model wants to stop against the evidence (Feedback.WantedStop).
type Model struct {
	LLM     llm.Model
	Prompts *prompts.Templates
	Skills  *prompts.Skills // nil for none
}

// Name is the language model's.
func (m Model) Name() string { return m.LLM.Name() }

// longestRepaired is the longest answer that is sent back to be repaired. What
// is longer would cost more than a new one.
const longestRepaired = 16 << 10

// Judge asks once, and once more where the answer cannot be read. Errors of the
// language model are returned as they are.
func (m Model) Judge(ctx context.Context, in kernelwright.JudgeInput) (kernelwright.Feedback, error) {
	if err := ctx.Err(); err != nil {
		return kernelwright.Feedback{}, err
	}
	rules, err := Rules{}.Judge(ctx, in)
	if err != nil {
		return kernelwright.Feedback{}, err
	}
	what := prompts.JudgeCorrection
	if in.Want == kernelwright.Optimisation {
		what = prompts.JudgeOptimisation
	}
	view, metrics := m.view(in, rules)
	own, err := placeholdersOf(m.Prompts, what, view)
	if err != nil {
		return kernelwright.Feedback{}, err
	}
	key := llm.Key{Run: in.Run, Round: len(in.History), Agent: "judge"}
	var request llm.Request
	reply, err := llm.Ask(ctx, m.LLM, key, m.short, func(w llm.Window) (_ llm.Request, left []string, err error) {
		request, left, err = m.request(in, what, view, w)
		return request, left, err
	})
	if err != nil {
		return kernelwright.Feedback{}, err
	}
	said, wrong := read(reply, in.Want, metrics, own)
	if wrong == nil {
		return held(said, rules, in), nil
	}
	again, whole, err := m.repair(request, reply, wrong, view)
	if err != nil {
		return kernelwright.Feedback{}, err
	}
	key.Seq = 1
	reply, err = llm.Ask(ctx, m.LLM, key, m.short, func(w llm.Window) (llm.Request, []string, error) {
		switch {
		case w.HoldsJust(whole, leastReply):
			return whole, nil, nil
		case w.HoldsJust(again, leastReply):
			return again, []string{"the answer that could not be used"}, nil
		}
		return again, nil, llm.ErrNoFit
	})
	var failed *llm.Error
	switch {
	case errors.As(err, &failed) && failed.Kind == llm.TooLong:
		// The answer that was to be repaired did not fit.
	case err != nil:
		return kernelwright.Feedback{}, err
	default:
		if said, wrong = read(reply, in.Want, metrics, own); wrong == nil {
			return held(said, rules, in), nil
		}
	}
	rules.Unusable = fmt.Sprintf("the answer of %s could not be used: %s", m.Name(), prompts.Line(wrong.Error(), 200))
	return rules, nil
}

// leastReply is what a feedback takes at least, in tokens.
const leastReply = 256

// short says whether a model with this window is asked in few words.
func (m Model) short(w llm.Window) bool { return m.Prompts.Profile.Compact(m.Name(), w.Context) }

// request is the question, as much of it as the window holds, and what is left out.
func (m Model) request(in kernelwright.JudgeInput, what prompts.JudgePrompt, view prompts.JudgeView, w llm.Window) (llm.Request, []string, error) {
	seed := callSeed(in)
	var r llm.Request
	write := func(system, user string) {
		r = llm.Request{
			Task: in.Task.Name,
			Messages: []llm.Message{
				{Role: llm.System, Text: system, Shared: len(system)},
				{Role: llm.User, Text: user, Shared: prompts.SharedPrefix(user, view.Reference, view.Task, view.Device)},
			},
			Schema: forms[in.Want].schema(),
			Seed:   &seed,
		}
	}
	view.Compact, view.MayCompact = w.Compact, m.Prompts.Profile != prompts.ProfileFull
	p, fits, err := m.Prompts.FitJudge(what, view, func(system, user string) bool {
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

// repair is the request for the same answer in a form that can be used: again from
// the question alone, whole with the answer that was given, where it may be shown.
func (m Model) repair(first llm.Request, reply llm.Reply, wrong error, view prompts.JudgeView) (again, whole llm.Request, err error) {
	view.Error = prompts.Fence("error", wrong.Error(), prompts.MaxOutputBytes)
	_, user, err := m.Prompts.Judge(prompts.JudgeRepair, view)
	if err != nil {
		return again, whole, fmt.Errorf("make the prompt %s: %w", prompts.JudgeRepair, err)
	}
	again, whole = first, first
	again.Messages = slices.Clone(first.Messages)
	again.Messages[1].Text += "\n\n" + user
	if text := strings.TrimSpace(reply.Text); text == "" || len(reply.Text) > longestRepaired || len(reply.ToolCalls) > 0 {
		return again, again, nil
	}
	whole.Messages = append(slices.Clone(first.Messages), reply.Message(), llm.Message{Role: llm.User, Text: user})
	whole.Append = true
	return again, whole, nil
}

// view is what the model is shown, and the metrics among it by name.
func (m Model) view(in kernelwright.JudgeInput, rules kernelwright.Feedback) (prompts.JudgeView, map[string]float64) {
	c, verdict := in.Current.Candidate, in.Current.Verdict
	v := prompts.JudgeView{
		GPU:       in.Device.Kind == kernelwright.CUDADevice,
		Reference: prompts.Fence("reference", in.Task.Source, prompts.MaxReferenceBytes),
		Task:      prompts.TaskFacts(in.Task),
		Device:    prompts.DeviceFacts(in.Device),
		Brief:     prompts.Brief(in.Task, in.Device),
		Candidate: prompts.Fence("candidate", c.Source, prompts.MaxCandidateBytes),
		Verdict:   prompts.VerdictFacts(verdict),
		Build:     prompts.BuildFacts(verdict),
		Earlier:   prompts.EarlierRounds(in.History, in.Parent),
		Finding:   prompts.FeedbackFacts(rules),
	}
	if c.Language.Known() {
		v.Language = c.Language
	}
	v.Compiler, v.Output = prompts.OutputFacts(verdict)
	var metrics map[string]float64
	v.Metrics, metrics = prompts.Metrics(verdict, in.FullMetrics)
	if in.Want == kernelwright.Optimisation {
		v.Lessons = prompts.Lessons(in.Lessons, in.Task, rules.Rule)
	}
	if m.Skills != nil {
		q, most := prompts.QueryFor(in.Task, in.Device, c.Language, rules.Rule, rules.Bottleneck, rules.Issue, string(verdict.Status), verdict.Reason), prompts.SkillsToFind
		q.Status = verdict.Status
		if in.Want == kernelwright.Correction {
			most = prompts.SkillsToMend
		}
		v.Skills = m.Skills.Excerpt(q, most)
	}
	return v, metrics
}

// callSeed mixes a run's seed with a round's number. It fits 31 bits, which is
// what all servers take.
func callSeed(in kernelwright.JudgeInput) int64 {
	h := fnv.New32a()
	b := binary.LittleEndian.AppendUint64(nil, uint64(in.Seed))
	_, _ = h.Write(binary.LittleEndian.AppendUint64(b, uint64(len(in.History))))
	_, _ = h.Write([]byte("judge"))
	return int64(h.Sum32() >> 1)
}

// read makes a feedback of a reply. The error says what is wrong with it, in
// words that can be sent back.
func read(reply llm.Reply, want kernelwright.FeedbackKind, metrics map[string]float64, own placeholders) (kernelwright.Feedback, error) {
	f, err := parse(reply.Text, metrics)
	switch {
	case err != nil && reply.Stop == llm.StopRefused:
		return f, errors.New("the model refused to answer")
	case err != nil && reply.Stop == llm.StopFiltered:
		return f, errors.New("the provider's content filter cut the answer off")
	case err != nil && reply.Stop == llm.StopLength:
		return f, errors.New("the answer was cut off at max_tokens: it has to be shorter")
	case err != nil && reply.Stop == llm.StopContext:
		return f, errors.New("the answer was cut off because the context was full: it has to be much shorter")
	case err != nil:
		return f, err
	case f.Kind == kernelwright.Stop && want == kernelwright.Correction:
		return f, errors.New(`kind is "stop", which a failed candidate is no reason for: "correction" was asked for`)
	case f.Kind != want && f.Kind != kernelwright.Stop:
		return f, fmt.Errorf("kind is %q where %q was asked for", f.Kind, want)
	}
	return f, own.check(f)
}

// parse finds the JSON object in an answer, which may stand between fences or in
// prose, and reads it as strictly as kernelwright.ParseFeedback does. What a model
// is not asked for is dropped: knobs, what is the program's own to say, an explanation
// beside an optimisation, and evidence that names no number that it was shown.
func parse(answer string, metrics map[string]float64) (kernelwright.Feedback, error) {
	object, err := findObject(answer)
	if err != nil {
		return kernelwright.Feedback{}, err
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(object, &parts); err != nil {
		return kernelwright.Feedback{}, fmt.Errorf("feedback: %w", err)
	}
	for _, key := range []string{"knobs", "rule", "wanted_stop", "unusable"} {
		delete(parts, key)
	}
	for key, value := range parts {
		if string(value) == "null" {
			delete(parts, key)
		}
	}
	if string(parts["kind"]) == `"optimisation"` {
		delete(parts, "why")
	}
	evidence := shown(parts["evidence"], metrics)
	delete(parts, "evidence")
	b, err := json.Marshal(parts)
	if err != nil {
		return kernelwright.Feedback{}, fmt.Errorf("feedback: %w", err)
	}
	f, err := kernelwright.ParseFeedback(b)
	// Keys in other letters are the same to it.
	f.Evidence, f.Knobs, f.Rule, f.WantedStop, f.Unusable = evidence, nil, "", "", ""
	for _, part := range []*string{&f.Issue, &f.Why, &f.Fix, &f.Bottleneck, &f.Method, &f.Plan} {
		*part = strings.TrimSpace(prompts.Clean(*part))
	}
	if err == nil {
		err = f.Validate()
	}
	return f, err
}

// shown returns those metrics that evidence names, be it a list of names or an
// object of names and values. A value that is not the one shown (to 1 %: models
// round) was made up, and its name is dropped with it.
func shown(evidence json.RawMessage, metrics map[string]float64) map[string]float64 {
	kept := map[string]float64{}
	var names []string
	var values map[string]any
	if json.Unmarshal(evidence, &names) == nil {
		for _, name := range names {
			name, _, _ = strings.Cut(name, " ") // "memory_share = 0.4"
			if x, ok := metrics[name]; ok {
				kept[name] = x
			}
		}
	} else if json.Unmarshal(evidence, &values) == nil {
		for name, value := range values {
			said, isNumber := value.(float64)
			if x, ok := metrics[name]; ok && isNumber && math.Abs(said-x) <= 0.01*math.Abs(x) {
				kept[name] = x
			}
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// MaxAnswerBytes is the longest answer that is looked into: a feedback, and as
// much again of what is said round it.
const MaxAnswerBytes = 4 * kernelwright.MaxFeedbackBytes

// maxObjects is how many places of an answer are tried as the start of its
// object, so that the work on a hostile answer stays bounded.
const maxObjects = 64

// findObject returns the one JSON object of an answer that has a kind. Two that
// differ are none: one of them may be quoted from the material. Without any,
// the error says why the first is none.
func findObject(answer string) ([]byte, error) {
	if len(answer) > MaxAnswerBytes {
		return nil, fmt.Errorf("the answer is %d bytes long: it has to be one short JSON object", len(answer))
	}
	answer = strings.ToValidUTF8(strings.TrimPrefix(answer, "\ufeff"), "\uFFFD")
	for _, begins := range []string{"</think>", "</thinking>", "<|channel|>final<|message|>"} {
		if at := strings.LastIndex(answer, begins); at >= 0 {
			answer = answer[at+len(begins):]
		}
	}
	if strings.TrimSpace(answer) == "" {
		return nil, errors.New("the answer is empty: it has to be one JSON object")
	}
	var found, other []byte
	var broken error
	for range maxObjects {
		at := strings.IndexByte(answer, '{')
		if at < 0 {
			break
		}
		var object json.RawMessage
		dec := json.NewDecoder(strings.NewReader(answer[at:]))
		if err := dec.Decode(&object); err != nil {
			if broken == nil {
				broken = fmt.Errorf("the JSON object cannot be read: %w", err)
			}
			answer = answer[at+1:]
			continue
		}
		answer = answer[at+int(dec.InputOffset()):]
		var with struct {
			Kind json.RawMessage `json:"kind"`
		}
		switch {
		case json.Unmarshal(object, &with) != nil || with.Kind == nil:
			other = object
		case found != nil && !sameJSON(found, object):
			return nil, errors.New("the answer holds two JSON objects that differ: it has to be exactly one")
		default:
			found = object
		}
	}
	switch {
	case found != nil:
		return found, nil
	case broken != nil:
		return nil, broken
	case other != nil:
		return other, nil // who reads it says what it lacks
	}
	return nil, errors.New("the answer holds no JSON object")
}

func sameJSON(a, b []byte) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}
