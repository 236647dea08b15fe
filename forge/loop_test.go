package forge

import (
	"reflect"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

func intp(n int) *int { return &n }

func TestWhatTheCoderSees(t *testing.T) {
	verdict := kernelwright.Verdict{
		Status: kernelwright.Correct, Level: kernelwright.Quick, CandidateMS: 3, Headroom: 0.4, Reason: "r", Hint: "h",
		Speedup: &kernelwright.Speedup{Value: 2}, Metrics: map[string]float64{"m": 1},
	}
	rejected := kernelwright.Verdict{Status: kernelwright.Rejected, Level: kernelwright.Quick, Reason: "no file", Hint: "send one", Versions: map[string]string{"torch": "2"}}
	feedback := &kernelwright.Feedback{Kind: kernelwright.Optimisation, Bottleneck: "b", Method: "m", Plan: "p"}
	round := func(i int, source string, v kernelwright.Verdict) kernelwright.Round {
		return kernelwright.Round{Index: i, Candidate: kernelwright.Candidate{Source: source}, Verdict: v, Feedback: feedback}
	}
	rounds := []kernelwright.Round{round(0, "a", verdict), round(1, "b", rejected), round(2, "a", verdict), round(3, "b", rejected)}
	for _, c := range []struct {
		name    string
		s       Settings
		parent  int
		verdict *kernelwright.Verdict
		view    kernelwright.View
		full    bool
		same    *int
	}{
		{"nothing", Settings{}, noParent, nil, "", false, nil},
		{"the last", Settings{}, 0, &verdict, "", false, nil},
		{"a repetition", Settings{Metrics: FullMetrics}, 2, &verdict, "", false, intp(0)},
		{"its own Judge", Settings{JudgeMode: JudgeSelf}, 0, &verdict, kernelwright.ViewMetrics, false, nil},
		{"with all metrics", Settings{JudgeMode: JudgeSelf, Metrics: FullMetrics}, 0, &verdict, kernelwright.ViewMetrics, true, nil},
		{"the score", Settings{JudgeMode: JudgeScore}, 2,
			&kernelwright.Verdict{Status: kernelwright.Correct, Level: kernelwright.Quick, Speedup: verdict.Speedup}, kernelwright.ViewScore, false, intp(0)},
		{"the score of no file", Settings{JudgeMode: JudgeScore}, 3,
			&kernelwright.Verdict{Status: kernelwright.Rejected, Level: kernelwright.Quick, Reason: "no file", Hint: "send one"}, kernelwright.ViewScore, false, intp(1)},
	} {
		lessons := []kernelwright.Lesson{{Run: 1}}
		l := &loop{Parts: &Parts{Lessons: lessons}, rounds: rounds, settings: c.s.withDefaults(), run: kernelwright.Run{ID: 4, Seed: 5}}
		in := l.coderInput(7, c.parent, 2)
		if in.Run != 4 || in.Seed != 5 || in.Round != 7 || in.Sample != 2 || in.View != c.view || in.FullMetrics != c.full || !reflect.DeepEqual(in.SameAs, c.same) || !reflect.DeepEqual(in.Lessons, lessons) {
			t.Errorf("%s: %+v", c.name, in)
		}
		switch {
		case c.verdict == nil:
			if in.Last != nil || in.Feedback != nil {
				t.Errorf("%s: it sees %+v", c.name, in.Last)
			}
		case in.Last == nil || !reflect.DeepEqual(in.Last.Verdict, *c.verdict) || in.Feedback != feedback:
			t.Errorf("%s: it sees %+v", c.name, in.Last)
		}
	}
}

// An answer without a candidate is told of, and the Coder goes on from the candidate before it.
func TestCoderInputAfterUnusableAnswers(t *testing.T) {
	u := &kernelwright.UnusableError{Answer: "prose", Reason: "no code", Hint: "send some", Origin: "m"}
	advice := &kernelwright.Feedback{Kind: kernelwright.Correction, Fix: "x"}
	real := kernelwright.Round{Candidate: kernelwright.Candidate{Source: "a"}, Verdict: kernelwright.Verdict{Status: kernelwright.Wrong}, Feedback: advice}
	none := kernelwright.Round{Candidate: unusableCandidate(u, kernelwright.CPP)}
	none.Verdict = unusableVerdict(u, none.Candidate, kernelwright.Task{}, kernelwright.Device{})
	for _, c := range []struct {
		name   string
		rounds []kernelwright.Round
		last   bool
		told   bool
	}{
		{"a candidate", []kernelwright.Round{none, real}, true, false},
		{"none at first", []kernelwright.Round{none}, false, true},
		{"none again", []kernelwright.Round{none, none}, false, true},
		{"none after a candidate", []kernelwright.Round{real, none, none}, true, true},
	} {
		for i := range c.rounds {
			c.rounds[i].Index = i
		}
		l := &loop{Parts: &Parts{}, rounds: c.rounds, settings: Settings{}.withDefaults()}
		in := l.coderInput(len(c.rounds), len(c.rounds)-1, 0)
		if (in.Last != nil) != c.last || c.last && (in.Last.Candidate.Source != "a" || in.Feedback != advice) || !c.last && in.Feedback != nil {
			t.Errorf("%s: it goes on from %+v with %+v", c.name, in.Last, in.Feedback)
		}
		if (in.Unusable != nil) != c.told || c.told && *in.Unusable != *u {
			t.Errorf("%s: it is told %+v", c.name, in.Unusable)
		}
	}
}

func TestBeam(t *testing.T) {
	r := func(source string, status kernelwright.Status, ms float64) kernelwright.Round {
		return kernelwright.Round{Candidate: kernelwright.Candidate{Source: source}, Verdict: kernelwright.Verdict{Status: status, CandidateMS: ms}}
	}
	as := func(x kernelwright.Round, candidate, code string) kernelwright.Round {
		x.Verdict.Candidate, x.Verdict.Build.Code = candidate, code
		return x
	}
	for _, c := range []struct {
		name   string
		rounds []kernelwright.Round
		first  int
		k      int
		want   []int
	}{
		{"none", nil, 0, 2, nil},
		{"by time", []kernelwright.Round{r("a", kernelwright.Correct, 3), r("b", kernelwright.Correct, 1), r("c", kernelwright.Correct, 2)}, 0, 2, []int{1, 2}},
		{"the earlier of equals", []kernelwright.Round{r("a", kernelwright.Correct, 1), r("b", kernelwright.Correct, 1)}, 0, 1, []int{0}},
		{"the same source", []kernelwright.Round{r("a", kernelwright.Correct, 1), r("a", kernelwright.Correct, 1), r("c", kernelwright.Correct, 2)}, 0, 2, []int{0, 2}},
		{"a source with a space more", []kernelwright.Round{r("a", kernelwright.Correct, 1), r("a \n", kernelwright.Correct, 1), r("c", kernelwright.Correct, 2)}, 0, 2, []int{0, 1}},
		{"the same tree in an old record", []kernelwright.Round{as(r("a", kernelwright.Correct, 2), "t", ""), as(r("b", kernelwright.Correct, 1), "t", ""), as(r("c", kernelwright.Correct, 3), "u", "")}, 0, 2, []int{1, 0}},
		{"the same code", []kernelwright.Round{as(r("a", kernelwright.Correct, 2), "t", "x"), as(r("b", kernelwright.Correct, 1), "u", "x"), as(r("c", kernelwright.Correct, 3), "v", "y")}, 0, 2, []int{1, 2}},
		{"failed ones fill up, the farthest first", []kernelwright.Round{
			r("a", kernelwright.BuildFailed, 0), r("b", kernelwright.Wrong, 0), r("c", kernelwright.Rejected, 0), r("d", kernelwright.Correct, 9)}, 0, 3, []int{3, 1, 0}},
		{"of the last generation alone", []kernelwright.Round{
			r("a", kernelwright.Wrong, 0), r("b", kernelwright.Correct, 5), r("c", kernelwright.Crashed, 0), r("d", kernelwright.Cheated, 0)}, 2, 9, []int{1, 2, 3}},
		{"never timed", []kernelwright.Round{r("a", kernelwright.Correct, 0), r("b", kernelwright.Correct, 5)}, 0, 2, []int{1, 0}},
	} {
		if got := beamOf(c.rounds, c.first, c.k); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestForeignTextInASummary(t *testing.T) {
	why := "It is\nat the limit" + strings.Repeat(" of everything", 1000) + "\x00\xff"
	for _, out := range []Outcome{{Status: kernelwright.RunDeclined, Stop: kernelwright.StopDeclined}, {Status: kernelwright.RunDone, Stop: kernelwright.StopDeclined}} {
		if got := summarise(out, nil, Settings{}, why, "round"); strings.Contains(got, "\n") || len(got) > 2*maxWhyBytes || !strings.Contains(got, "It is at the limit") {
			t.Errorf("%q", got)
		}
	}
	if got := summarise(Outcome{Status: kernelwright.RunDeclined, Stop: kernelwright.StopDeclined}, nil, Settings{}, " \n", "round"); got != "The Coder declined, and gave no reason." {
		t.Errorf("%q", got)
	}
}

func TestUnusableAnswersAreBounded(t *testing.T) {
	u := &kernelwright.UnusableError{Answer: strings.Repeat("é", maxAnswerBytes) + "\xff", Origin: "m"}
	c := unusableCandidate(u, kernelwright.CUDA)
	if len(c.Source) > maxAnswerBytes || strings.ToValidUTF8(c.Source, "") != c.Source || c.Language != kernelwright.CUDA || c.Origin != "m" {
		t.Errorf("%d bytes, %+v", len(c.Source), c.Language)
	}
	if err := replyCorrection(u).Validate(); err != nil {
		t.Error(err)
	}
}
