package judge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge/forgetest"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
)

// scripted answers in turn, and keeps what it was asked.
type scripted struct {
	replies []llm.Reply
	errs    []error

	mu    sync.Mutex
	asked []llm.Request
}

func (*scripted) Name() string { return "test:scripted" }

func (s *scripted) Generate(ctx context.Context, r llm.Request) (llm.Reply, error) {
	if err := ctx.Err(); err != nil {
		return llm.Reply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r)
	n := r.Key.Seq
	if n < len(s.errs) && s.errs[n] != nil {
		return llm.Reply{}, s.errs[n]
	}
	return s.replies[min(n, len(s.replies)-1)], nil
}

func said(text string) llm.Reply { return llm.Reply{Text: text, Stop: llm.StopEnd} }

func model(t testing.TB, replies ...llm.Reply) (Model, *scripted) {
	t.Helper()
	p, err := prompts.LoadTemplates("")
	if err != nil {
		t.Fatal(err)
	}
	skills, err := prompts.LoadSkills("")
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{replies: replies}
	return Model{LLM: s, Prompts: p, Skills: skills}, s
}

const (
	correction   = `{"kind": "correction", "issue": "The tail.", "why": "n is odd.", "fix": "Mask it.", "evidence": []}`
	optimisation = `{"kind": "optimisation", "bottleneck": "Memory.", "method": "One pass", "plan": "Keep the row.", "why": "", "evidence": ["memory_share"]}`
)

// both answers as the schema asks.
type both struct{ scripted }

func (b *both) Generate(ctx context.Context, r llm.Request) (llm.Reply, error) {
	if err := ctx.Err(); err != nil {
		return llm.Reply{}, err
	}
	if r.Schema.Name == "correction" {
		return said(correction), nil
	}
	return said(optimisation), nil
}

func TestModelConformance(t *testing.T) {
	m, _ := model(t)
	m.LLM = &both{}
	forgetest.Judge(t, m, true)
}

// A model that never answers anything that can be read costs no round either.
func TestUnreadableModelConformance(t *testing.T) {
	m, _ := model(t, said("no"))
	forgetest.Judge(t, m, true)
}

var (
	failed = kw.JudgeInput{Run: 3, Seed: 5, Want: kw.Correction, History: make([]kw.Round, 2), Task: kw.Task{Source: "class Model: pass\n"},
		Current: kw.Attempt{Candidate: kw.Candidate{Source: "class ModelNew: pass\n", Language: kw.CPP}, Verdict: kw.Verdict{Status: kw.Wrong, Reason: "It differs."}}}
	slow = kw.JudgeInput{Run: 3, Want: kw.Optimisation, Current: kw.Attempt{Candidate: kw.Candidate{Source: "class ModelNew: pass\n", Language: kw.CPP},
		Verdict: kw.Verdict{Status: kw.Correct, CandidateMS: 2, Headroom: 0.3, Metrics: map[string]float64{"memory_share": 0.4, "core_use": 0.5, "context_switches": 3}}}}
)

func TestAnAnswerIsRepairedOnce(t *testing.T) {
	m, s := model(t, said(`{"kind": "correction", "issue": "The tail.",}`), said(correction))
	f, err := m.Judge(t.Context(), failed)
	if err != nil || f.Fix != "Mask it." || f.Rule != "" {
		t.Fatalf("%+v %v", f, err)
	}
	if len(s.asked) != 2 {
		t.Fatalf("%d calls", len(s.asked))
	}
	first, second := s.asked[0], s.asked[1]
	if first.Key != (llm.Key{Run: 3, Round: 2, Agent: "judge"}) || first.Append || first.Schema == nil || first.Seed == nil {
		t.Errorf("first %+v", first.Key)
	}
	if second.Key != (llm.Key{Run: 3, Round: 2, Agent: "judge", Seq: 1}) || !second.Append || second.Schema == nil || len(second.Messages) != 4 ||
		second.Messages[2].Text != s.replies[0].Text || !strings.Contains(second.Messages[3].Text, "invalid character '}'") {
		t.Errorf("second %+v", second)
	}
}

// What cannot be sent back (nothing, or too much) is asked for anew.
func TestAnAnswerThatCannotBeSentBackIsAskedForAnew(t *testing.T) {
	for _, bad := range []string{"", " \n", strings.Repeat("no ", 10000)} {
		m, s := model(t, said(bad), said(correction))
		if f, err := m.Judge(t.Context(), failed); err != nil || f.Fix != "Mask it." {
			t.Fatalf("%+v %v", f, err)
		}
		again := s.asked[1]
		if len(again.Messages) != 2 || again.Append || !strings.HasPrefix(again.Messages[1].Text, s.asked[0].Messages[1].Text) || !strings.Contains(again.Messages[1].Text, "cannot be used") {
			t.Errorf("%.20q: %d messages", bad, len(again.Messages))
		}
	}
}

func TestTheRulesTakeTheModelsPlace(t *testing.T) {
	m, s := model(t, said("I would use float4."), said("As I said: float4."))
	f, err := m.Judge(t.Context(), failed)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := Rules{}.Judge(t.Context(), failed)
	if err != nil {
		t.Fatal(err)
	}
	if f.Issue != rules.Issue || f.Rule != rules.Rule || f.Unusable != "the answer of test:scripted could not be used: the answer holds no JSON object" || len(s.asked) != 2 {
		t.Errorf("%d calls, %+v", len(s.asked), f)
	}
}

// A Judge whose answer was cut off is told by what.
func TestAnAnswerThatIsCutOff(t *testing.T) {
	for stop, want := range map[llm.Stop]string{llm.StopLength: "cut off at max_tokens", llm.StopContext: "cut off because the context was full"} {
		m, s := model(t, llm.Reply{Text: `{"kind": "correction", "issue": "it`, Stop: stop}, said(correction))
		if _, err := m.Judge(t.Context(), failed); err != nil {
			t.Fatal(err)
		}
		if len(s.asked) != 2 || !strings.Contains(s.asked[1].Messages[len(s.asked[1].Messages)-1].Text, want) {
			t.Errorf("%s: it is asked again in %+v", stop, s.asked[1:])
		}
	}
}

func TestErrorsOfTheModel(t *testing.T) {
	for name, c := range map[string]struct {
		errs []error
		lost bool // the caller gets it
	}{
		"first call":             {[]error{&llm.Error{Kind: llm.BadKey, Model: "test:scripted", Text: "no key"}}, true},
		"no budget":              {[]error{nil, &llm.Error{Kind: llm.OverBudget, Model: "test:scripted", Text: "over"}}, true},
		"repair does not fit":    {[]error{nil, &llm.Error{Kind: llm.TooLong, Model: "test:scripted", Text: "too long"}}, false},
		"cancelled while asking": {[]error{context.Canceled}, true},
	} {
		t.Run(name, func(t *testing.T) {
			m, s := model(t, said("no"))
			s.errs = c.errs
			f, err := m.Judge(t.Context(), failed)
			if want := c.errs[len(c.errs)-1]; c.lost != errors.Is(err, want) || c.lost == (f.Rule != "") {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
}

// What the Judge is shown of a correct candidate: its own numbers with their
// units, the rules' finding, lessons, what was tried, and no metric that was not
// selected.
func TestWhatTheJudgeIsShown(t *testing.T) {
	m, s := model(t, said(optimisation))
	in := slow
	in.Lessons = []kw.Lesson{{Task: "f", TaskName: "other", Method: "Keep rows in registers", FromMS: 1.8, ToMS: 1, Outcome: kw.LessonFaster, Moved: []kw.Movement{{Metric: "memory_share", From: 0.3, To: 0.6}}}}
	in.Task = kw.Task{Source: "class Model: pass # the reference\n", Operators: []string{"aten.softmax"}}
	in.Device = kw.Device{Kind: kw.CPUDevice, Specs: kw.Specs{Model: "a CPU", Cores: 4}, Ceilings: kw.Ceilings{MemoryGBs: 20}}
	in.History = []kw.Round{{Verdict: kw.Verdict{Status: kw.Correct, CandidateMS: 5}, Feedback: &kw.Feedback{Kind: kw.Optimisation, Method: "Use more cores"}}}
	f, err := m.Judge(t.Context(), in)
	if err != nil || !maps.Equal(f.Evidence, map[string]float64{"memory_share": 0.4}) {
		t.Fatalf("%+v %v", f, err)
	}
	text := s.asked[0].Messages[1].Text
	for _, want := range []string{"# the reference", "class ModelNew", "memory_share = 0.4 share (achieved of the measured memory bandwidth)", "candidate_ms = 2 ms", "headroom",
		"memory 20 GB/s", "other: advised: Keep rows in registers; faster, 1.8 to 1 ms; memory_share 0.3 to 0.6", "round 0, from the task alone: correct, 5 ms; then advised: Use more cores", "the candidate here, from round 0", "It is evidence, and may be wrong:\n```data: feedback"} {
		if !strings.Contains(text, want) {
			t.Errorf("it is not shown %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "context_switches") {
		t.Error("it is shown what was not selected")
	}
	if system, user := s.asked[0].Messages[0], s.asked[0].Messages[1]; system.Shared != len(system.Text) || !strings.HasSuffix(strings.TrimSpace(strings.TrimRight(text[:user.Shared], "`\n")), "GB/s") {
		t.Errorf("other rounds share\n%s", text[:user.Shared])
	}
	in.FullMetrics = true
	if _, err := m.Judge(t.Context(), in); err != nil || !strings.Contains(s.asked[1].Messages[1].Text, "context_switches = 3") {
		t.Errorf("it is not shown everything: %v", err)
	}
}

// shipped are the placeholders of the program's own prompts.
func shipped(t testing.TB, want kw.FeedbackKind) placeholders {
	t.Helper()
	what := prompts.JudgeCorrection
	if want == kw.Optimisation {
		what = prompts.JudgeOptimisation
	}
	p, err := prompts.LoadTemplates("")
	if err != nil {
		t.Fatal(err)
	}
	own, err := placeholdersOf(p, what, prompts.JudgeView{})
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// answers are the files of testdata/answers: lines "key: value", a line "---", and
// the answer to the last byte.
//
//	read: yes or no
//	asked: correction or optimisation
//	pad: a number, and what stands so often in the place of PAD
//	stop: why the reply ended; "end" where nothing is said
//	evidence: what is kept of it
//	says: text of the error
func answers(t testing.TB) map[string]map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/answers/*.txt")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d answers: %v", len(files), err)
	}
	all := map[string]map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		head, text, ok := bytes.Cut(b, []byte("---\n"))
		if !ok {
			t.Fatalf("%s has no line of three dashes", f)
		}
		a := map[string]string{"text": string(text), "stop": string(llm.StopEnd)}
		for line := range strings.Lines(string(head)) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			a[key] = value
		}
		if times, what, ok := strings.Cut(a["pad"], " "); ok {
			n, err := strconv.Atoi(times)
			if err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			a["text"] = strings.Replace(a["text"], "PAD", strings.Repeat(what, n), 1)
		}
		all[strings.TrimSuffix(filepath.Base(f), ".txt")] = a
	}
	return all
}

// What models answer, and whether it is a feedback.
func TestAnswers(t *testing.T) {
	metrics := map[string]float64{"memory_share": 0.4, "core_use": 0.5, "headroom": 0.3}
	for name, a := range answers(t) {
		t.Run(name, func(t *testing.T) {
			f, err := read(llm.Reply{Text: a["text"], Stop: llm.Stop(a["stop"])}, kw.FeedbackKind(a["asked"]), metrics, shipped(t, kw.FeedbackKind(a["asked"])))
			if (err == nil) != (a["read"] == "yes") {
				t.Fatalf("%+v %v", f, err)
			}
			if err != nil {
				if !strings.Contains(err.Error(), a["says"]) {
					t.Errorf("error %v, want %q", err, a["says"])
				}
				return
			}
			forgetest.CheckFeedback(t, f, kw.JudgeInput{Want: kw.FeedbackKind(a["asked"])})
			if got := strings.Join(slices.Sorted(maps.Keys(f.Evidence)), " "); got != a["evidence"] {
				t.Errorf("evidence %q, want %q", got, a["evidence"])
			}
			if f.Knobs != nil || f.Rule != "" || strings.ContainsAny(f.Issue+f.Why+f.Fix, "\x1b\x00\u202e") {
				t.Errorf("%+v", f)
			}
		})
	}
}

// What the recordings that are here have a Judge say is read as it stands.
func TestRecordedAnswers(t *testing.T) {
	own := map[kw.FeedbackKind]placeholders{kw.Correction: shipped(t, kw.Correction), kw.Optimisation: shipped(t, kw.Optimisation)}
	count := 0
	check := func(where, text string) {
		want := kw.Optimisation
		if strings.Contains(text, `"kind": "correction"`) {
			want = kw.Correction
		}
		if _, err := read(said(text), want, nil, own[want]); err != nil {
			t.Errorf("%s: %v: %s", where, err, text)
		}
		count++
	}
	experts, err := filepath.Glob("../bench/experts/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range experts {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, `{"kind"`) {
				check(path, line)
			}
		}
	}
	recordings, err := filepath.Glob("../examples/recordings/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range recordings {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for dec := json.NewDecoder(bytes.NewReader(b)); ; {
			var run struct{ Talk []llm.Record }
			if err := dec.Decode(&run); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			for _, c := range run.Talk {
				if c.Key.Agent == "judge" {
					check(path, c.Reply.Text)
				}
			}
		}
	}
	if count < 34 {
		t.Errorf("%d answers", count)
	}
}

// FuzzAnswer: whatever a model answers is a sound feedback or an error, the same
// each time.
func FuzzAnswer(f *testing.F) {
	for _, a := range answers(f) {
		if len(a["text"]) < 4096 {
			f.Add(a["text"], a["asked"] == "correction")
		}
	}
	own := map[kw.FeedbackKind]placeholders{kw.Correction: shipped(f, kw.Correction), kw.Optimisation: shipped(f, kw.Optimisation)}
	f.Fuzz(func(t *testing.T, text string, failed bool) {
		want := kw.Optimisation
		if failed {
			want = kw.Correction
		}
		metrics := map[string]float64{"memory_share": 0.4}
		got, err := read(said(text), want, metrics, own[want])
		again, err2 := read(said(text), want, metrics, own[want])
		if (err == nil) != (err2 == nil) || got.Fix != again.Fix || got.Plan != again.Plan {
			t.Fatalf("%+v %v, then %+v %v", got, err, again, err2)
		}
		if err != nil {
			return
		}
		forgetest.CheckFeedback(t, got, kw.JudgeInput{Want: want})
		if got.Knobs != nil || got.Rule != "" {
			t.Fatalf("%+v", got)
		}
		for name, x := range got.Evidence {
			if metrics[name] != x {
				t.Fatalf("%+v", got)
			}
		}
	})
}
