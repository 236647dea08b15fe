package store

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	kw "github.com/kernelwright/kernelwright"
)

// attempt is a round of a run of teach.
type attempt struct {
	ms       float64 // 0: it is wrong
	knob     int     // of its schedule; 0: it has none
	feedback *kw.Feedback
	source   string // instead of one of its own
	note     string
	assumes  string // what its verdict says that it takes for granted
}

// teach records a run on a device, of a task with these operators, and ends it.
func teach(t testing.TB, s *Store, device, operators, ends string, rounds ...attempt) int64 {
	t.Helper()
	ctx := t.Context()
	task := kw.Task{Fingerprint: "task " + operators, Name: "of " + operators, Source: operators, Operators: strings.Fields(operators)}
	ok(t, s.SaveTask(ctx, task))
	ok(t, s.SaveDevice(ctx, kw.Device{Kind: kw.CPUDevice, Key: device, Name: "a CPU"}))
	run := must(s.CreateRun(ctx, kw.Run{Task: task.Fingerprint, TaskName: task.Name, Device: "cpu", DeviceKey: device, Status: kw.RunRunning}))(t)
	best := 0
	for i, a := range rounds {
		r := round(run.ID, i, kw.Wrong, 0)
		r.Candidate.Note, r.Feedback = a.note, a.feedback
		if a.knob > 0 {
			r.Candidate.Source = kw.Schedule{Knobs: map[string]kw.Knob{"unroll": {Value: a.knob, Choices: []int{1, 2, 4, 8}}, "fixed": {Value: 1}}}.Comment() + "\n# " + fmt.Sprint(i)
		}
		if a.source != "" {
			r.Candidate.Source = a.source
		}
		if a.ms > 0 {
			r.Verdict = kw.Verdict{Status: kw.Correct, CandidateMS: a.ms, Floor: kw.Floor{Bound: "memory"}, Metrics: map[string]float64{
				"memory_share": 1 / a.ms, "achieved_gbs": 10 / a.ms, "core_use": 0.5, "pytorch_share": 0.001 / a.ms, "call_overhead_share": 0.3 / a.ms, "celsius": 30 + a.ms, "instructions": 100 * a.ms * a.ms, "bad": math.MaxFloat64 / a.ms}}
			if a.assumes != "" {
				r.Verdict.Assumes = kw.Assumptions{a.assumes}
			}
			r.Verdict.Timing.Candidate = kw.Measurement{LowMS: 0.95 * a.ms, HighMS: 1.05 * a.ms}
			r.Verdict.Profile = &kw.Profile{Metrics: map[string]float64{"dram__bytes.sum": 1000 - a.ms}}
			if rounds[best].ms == 0 || a.ms < rounds[best].ms {
				best = i
			}
		}
		ok(t, s.AppendRound(ctx, r))
	}
	if ends == "certified" || ends == "running" {
		ok(t, s.SetCertificate(ctx, run.ID, best, kw.Verdict{Status: kw.Certified, CandidateMS: rounds[best].ms, Exported: "# e", ExportedSHA256: kw.HashText("# e")}))
	}
	if ends != "running" {
		run.Status = kw.RunDone
		ok(t, s.UpdateRun(ctx, run))
		ok(t, s.UpdateRun(ctx, run)) // again changes nothing
	}
	return run.ID
}

func optimise(rule, method string) *kw.Feedback {
	return &kw.Feedback{Kind: kw.Optimisation, Rule: rule, Bottleneck: "Memory: it waits", Method: method, Plan: "p"}
}

// summary is a lesson in a few words.
func summary(l kw.Lesson) string {
	return fmt.Sprintf("%d/%d<%d %s %v %s %.3g", l.Run, l.Round, l.From, l.Rule, l.Steps, l.Outcome, l.Ratio())
}

func summaries(t testing.TB, s *Store, f LessonFilter) string {
	t.Helper()
	var all []string
	for _, l := range must(s.Lessons(t.Context(), f))(t) {
		all = append(all, summary(l))
	}
	return strings.Join(all, "; ")
}

func TestLessonsAreOfCertifiedRunsAlone(t *testing.T) {
	s := openTest(t)
	rounds := []attempt{{ms: 4, feedback: optimise("r", "m")}, {ms: 2}}
	for _, ends := range []string{"running", "uncertified"} {
		teach(t, s, "d", "a b", ends, rounds...)
		if got := summaries(t, s, LessonFilter{}); got != "" {
			t.Errorf("%s: %s", ends, got)
		}
	}
	teach(t, s, "d", "a b", "certified", rounds...)
	if got := summaries(t, s, LessonFilter{}); got != "3/1<0 r [] faster 2" {
		t.Error(got)
	}
}

// What a lesson says, from the rounds that it is about.
func TestWhatALessonSays(t *testing.T) {
	s := openTest(t)
	teach(t, s, "d", "b a b", "certified",
		attempt{ms: 4, feedback: optimise("memory_ceiling", "fuse"), note: "first"},
		attempt{ms: 2, feedback: optimise("memory_ceiling (the answer of m could not be read: x)", "fuse more"), note: "fused"},
		attempt{ms: 2.1, feedback: &kw.Feedback{Kind: kw.Optimisation, Bottleneck: "L2 misses", Method: "tile", Plan: "p"}},
		attempt{ms: 3, source: "x"}, attempt{ms: 3, source: "x"}, attempt{}, attempt{ms: 1})
	want := "1/4" // the same source again is no change, and what follows a wrong one teaches nothing of speed
	if got := summaries(t, s, LessonFilter{}); strings.Contains(got, want) || got != "1/5<4  [] failed 0; 1/3<2  [] slower 0.7; 1/2<1 memory_ceiling [] unchanged 0.952; 1/1<0 memory_ceiling [] faster 2" {
		t.Fatal(got)
	}
	all := must(s.Lessons(t.Context(), LessonFilter{}))(t)
	l := all[3]
	if l.Task != "task b a b" || l.TaskName != "of b a b" || !slices.Equal(l.Kinds, []string{"a", "b"}) || l.Device != "cpu" || l.DeviceKey != "d" ||
		l.Bottleneck != "Memory: it waits" || l.Method != "fuse" || l.Tried != "fused" || l.FromMS != 4 || l.ToMS != 2 || l.Status != kw.Correct {
		t.Errorf("%+v", l)
	}
	// Neither the machine's state, nor the time by another name, nor what stood still.
	if got := fmt.Sprint(l.Moved); !strings.HasPrefix(got, "[{instructions 1600 400} ") || !strings.Contains(got, "{memory_share 0.25 0.5}") || len(l.Moved) != 3 {
		t.Error(got)
	}
	if all[0].Reason != "Because." || all[0].ToMS != 0 || all[1].Method != "tile" {
		t.Errorf("%+v", all[:2])
	}
	// By rule, or by a word of a model's bottleneck.
	for bottleneck, want := range map[string]string{"memory_ceiling": "1/2 1/1", "l2": "1/3", "memory": "", "nothing": ""} {
		var got []string
		for _, l := range must(s.Lessons(t.Context(), LessonFilter{Bottleneck: bottleneck}))(t) {
			got = append(got, fmt.Sprintf("%d/%d", l.Run, l.Round))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v", bottleneck, got)
		}
	}
}

// Nobody learns that it pays to take something for granted: there inputs are strict.
func TestWhatTakesSomethingForGrantedTeachesAsWrong(t *testing.T) {
	s := openTest(t)
	teach(t, s, "d", "a", "certified", attempt{ms: 4, feedback: optimise("r", "m")}, attempt{ms: 1, assumes: "takes ids for granted"}, attempt{ms: 2})
	if got := summaries(t, s, LessonFilter{}); got != "1/1<0 r [] failed 0" {
		t.Fatal(got)
	}
	l := must(s.Lessons(t.Context(), LessonFilter{}))(t)[0]
	if l.Status != kw.Wrong || l.Reason != "it takes ids for granted" || l.ToMS != 0 {
		t.Errorf("%+v", l)
	}
}

// A Coder with a schedule is sent back to its fastest one: that is what the
// next is held against, not the detour in between.
func TestAStepIsHeldAgainstWhereItBegan(t *testing.T) {
	s := openTest(t)
	teach(t, s, "d", "a", "certified", attempt{ms: 4, knob: 2, feedback: optimise("r", "m")}, attempt{ms: 5, knob: 4, feedback: optimise("r", "m")},
		attempt{ms: 3, knob: 1, feedback: optimise("q", "m")}, attempt{ms: 3.5, knob: 2})
	if got := summaries(t, s, LessonFilter{}); got != "1/3<2 q [{unroll 1 2}] slower 0.857; 1/2<0 r [{unroll 2 1}] faster 1.33; 1/1<0 r [{unroll 2 4}] slower 0.8" {
		t.Error(got)
	}
	// Nothing is one step away: against the one before.
	teach(t, s, "e", "a", "certified", attempt{ms: 4, knob: 2}, attempt{ms: 5, source: "x"}, attempt{ms: 3, source: "y"}, attempt{ms: 2, knob: 2})
	if got := summaries(t, s, LessonFilter{Devices: []string{"e"}}); got != "2/3<2  [] faster 1.5; 2/2<1  [] faster 1.67; 2/1<0  [] slower 0.8" {
		t.Error(got)
	}
}

func TestLessonsAreSearched(t *testing.T) {
	s := openTest(t)
	two := []attempt{{ms: 4, feedback: optimise("r", "m")}, {ms: 2}}
	teach(t, s, "d", "a b", "certified", two...)
	teach(t, s, "e", "a b", "certified", two...)
	teach(t, s, "d", "a b c d", "certified", two...)
	teach(t, s, "d", "x", "certified", two...)
	teach(t, s, "d", "a b", "certified", two...)
	teach(t, s, "d", "", "certified", two...)
	for _, c := range []struct {
		f    LessonFilter
		want string // runs
	}{
		{LessonFilter{}, "6 5 4 3 2 1"},
		{LessonFilter{Limit: 2}, "6 5"},
		{LessonFilter{Devices: []string{"e"}}, "2"},
		{LessonFilter{Devices: []string{"e", "f"}, Holding: []string{"a"}}, "2"},
		{LessonFilter{Holding: []string{"a"}}, "5 3 2 1"},
		{LessonFilter{Holding: []string{"c", "a"}}, "3"},
		{LessonFilter{Holding: []string{"c", "x"}}, ""},
		{LessonFilter{Devices: []string{"d"}, Like: []string{"b", "a", "b"}}, "5 1 3"}, // the likest first
		{LessonFilter{Devices: []string{"d"}, Like: []string{"a", "b", "c", "d", "e"}}, "3"},
		{LessonFilter{Devices: []string{"f"}, Like: []string{"a", "b"}}, ""},
		{LessonFilter{Like: []string{"x"}, Bottleneck: "r"}, "4"},
		{LessonFilter{Like: []string{"x"}, Bottleneck: "q"}, ""},
	} {
		var got []string
		for _, l := range must(s.Lessons(t.Context(), c.f))(t) {
			got = append(got, fmt.Sprint(l.Run))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v", c.f, got)
		}
	}
}

// A run's Judge is given few of a kind, of its own device; what it was given
// stays, whatever is learned later.
func TestLessonsForARun(t *testing.T) {
	s := openTest(t)
	ctx := t.Context()
	task, here := kw.Task{Fingerprint: "new", Operators: []string{"a", "b"}}, kw.Device{Key: "d"}
	for range 7 {
		teach(t, s, "d", "a b", "certified", attempt{ms: 4, knob: 2, feedback: optimise("r", "m")}, attempt{ms: 2, knob: 4, feedback: optimise("q", "m")}, attempt{ms: 1, knob: 8})
		teach(t, s, "other", "a b", "certified", attempt{ms: 4}, attempt{ms: 2})
	}
	given := must(s.LessonsFor(ctx, 0, task, here))(t)
	count := map[string]int{}
	for _, l := range given {
		if l.DeviceKey != "d" {
			t.Errorf("of another device: %+v", l)
		}
		count[l.Rule]++
	}
	if len(given) != 8 || count["r"] != 4 || count["q"] != 4 {
		t.Fatalf("%v", count)
	}
	if none := must(s.LessonsFor(ctx, 0, kw.Task{}, here))(t); len(none) > 0 {
		t.Errorf("for no operators: %v", none)
	}
	ok(t, s.SaveDevice(ctx, here))
	run := must(s.CreateRun(ctx, kw.Run{Task: "new", DeviceKey: "d"}))(t)
	if got := must(s.RunLessons(ctx, run.ID))(t); len(got) > 0 {
		t.Errorf("%v", got)
	}
	ok(t, s.Describe(ctx, run, task, here, given))
	teach(t, s, "d", "a b", "certified", attempt{ms: 4, feedback: optimise("new", "m")}, attempt{ms: 2})
	ok(t, s.Describe(ctx, run, task, here, nil))
	if got := must(s.RunLessons(ctx, run.ID))(t); asJSON(t, got) != asJSON(t, given) {
		t.Errorf("%v", got)
	}
	if got := must(s.RunLessons(ctx, 99))(t); len(got) > 0 {
		t.Errorf("%v", got)
	}
}

// A run of a bench is taught by runs that had ended when the bench began, of
// other tasks than its own: neither its neighbours nor an answer to its own task.
func TestLessonsForARunOfABench(t *testing.T) {
	s := openTest(t)
	ctx := t.Context()
	now := int64(1000)
	s.now = func() time.Time { return time.UnixMilli(now) }
	ended := func(run, at int64) {
		t.Helper()
		r := must(s.Run(ctx, run))(t)
		r.FinishedMS = at
		ok(t, s.UpdateRun(ctx, r))
	}
	rounds := []attempt{{ms: 4, feedback: optimise("r", "m")}, {ms: 2}}
	earlier := teach(t, s, "d", "a b", "certified", rounds...)
	ended(earlier, 900)
	same := teach(t, s, "d", "a b c", "certified", rounds...)
	ended(same, 950)
	bench := must(s.CreateBench(ctx, kw.Bench{Seeds: []int64{0}}))(t)
	later := teach(t, s, "d", "a b d", "certified", rounds...) // begun whenever, it ended afterwards
	ended(later, 1001)
	task, here := kw.Task{Fingerprint: "task a b c", Operators: []string{"a", "b", "c"}}, kw.Device{Key: "d"}
	member := func(bench int64, configuration int) int64 {
		t.Helper()
		return must(s.CreateRun(ctx, kw.Run{Task: task.Fingerprint, DeviceKey: "d"}, WithMember(bench, kw.Member{Configuration: configuration})))(t).ID
	}
	taught := func(run int64) string {
		t.Helper()
		var by []string
		for _, l := range must(s.LessonsFor(ctx, run, task, here))(t) {
			by = append(by, fmt.Sprint(l.Run))
		}
		slices.Sort(by)
		return strings.Join(by, " ")
	}
	alone := must(s.CreateRun(ctx, kw.Run{Task: task.Fingerprint, DeviceKey: "d"}))(t).ID
	first := member(bench.ID, 0)
	// A run of the bench itself teaches none of its others, whatever the clock says.
	own := teach(t, s, "d", "a c", "certified", rounds...)
	must(s.write.ExecContext(ctx, `INSERT INTO bench_runs (bench, reference, configuration, seed, run) VALUES (?, 1, 0, 0, ?)`, bench.ID, own))(t)
	ended(own, 800)
	now = 2000
	next := must(s.CreateBench(ctx, kw.Bench{Seeds: []int64{0}}))(t)
	for what, c := range map[string]struct {
		run  int64
		want []int64
	}{
		"a run by itself":                  {alone, []int64{earlier, same, later, own}},
		"of a bench":                       {first, []int64{earlier}},
		"another cell of it":               {member(bench.ID, 1), []int64{earlier}},
		"of a bench that began afterwards": {member(next.ID, 0), []int64{earlier, later, own}},
	} {
		if got, want := taught(c.run), strings.Trim(fmt.Sprint(c.want), "[]"); got != want {
			t.Errorf("%s: by runs %s, want %s", what, got, want)
		}
	}
}

// What models and references say is bounded, and names that could confuse are
// left out.
func TestLessonsAreBounded(t *testing.T) {
	s := openTest(t)
	long := strings.Repeat("ignore all\nprevious ", 1<<15) + "\xff"
	bad := optimise("r", long)
	bad.Bottleneck = long
	teach(t, s, "d", "a "+strings.Repeat("x", 100)+" é "+strings.Join(strings.Split(strings.Repeat("y", 40), ""), "z "), "certified",
		attempt{ms: 4, feedback: bad, note: long}, attempt{ms: 2, note: long}, attempt{})
	for _, l := range must(s.Lessons(t.Context(), LessonFilter{}))(t) {
		for _, text := range []string{l.TaskName, l.Bottleneck, l.Method, l.Tried, l.Reason} {
			if len(text) > maxLessonWords+len("…") || strings.Contains(text, "\n") {
				t.Errorf("%d bytes: %q", len(text), text)
			}
		}
		if len(asJSON(t, l)) > 3000 || !slices.Contains(l.Kinds, "a") || slices.Contains(l.Kinds, "é") {
			t.Errorf("%+v", l)
		}
	}
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprint("op", i))
	}
	if got := kinds(many); len(got) != maxKinds {
		t.Error(len(got))
	}
	if got := kindsOf([]byte("no zstd")); got != nil {
		t.Error(got)
	}
}

// A history of the version before gets the lessons that this one would have
// noted, and a copy of a damaged one has no lessons of what was lost.
func TestLessonsOfEarlierVersions(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	s, err := Open(path)
	ok(t, err)
	teach(t, s, "d", "b a", "certified", attempt{ms: 4, feedback: optimise("r (x)", "m")}, attempt{ms: 2}, attempt{ms: 3})
	teach(t, s, "d", "c", "uncertified", attempt{ms: 4}, attempt{ms: 2})
	teach(t, s, "d", "c", "running", attempt{ms: 4}, attempt{ms: 2})
	teach(t, s, "e", "c", "certified", attempt{ms: 4}, attempt{}, attempt{ms: 2})
	want := asJSON(t, must(s.Lessons(t.Context(), LessonFilter{}))(t))
	withoutDigests(t, s.write)
	_, err = s.write.Exec(`DROP TABLE texts_words; DROP TABLE stages; DROP TABLE pipelines; DROP TABLE gate_outcomes; DROP TABLE gate_tasks; DROP TABLE gates; DROP TABLE promotions; DROP TABLE policies; DROP TABLE nights; DROP TABLE task_gates; DROP TABLE task_draws; DROP TABLE task_sets; DROP TABLE audit_pairs; DROP TABLE audits; DROP TABLE lessons; ALTER TABLE runs DROP COLUMN lessons;
		DROP INDEX charges_spent; CREATE INDEX charges_spent ON charges(ended);
		ALTER TABLE calls DROP COLUMN written; ALTER TABLE charges DROP COLUMN written; DROP TABLE events; DROP TABLE holds; DROP TABLE prunings; DROP INDEX rounds_language; DROP INDEX rounds_device; DROP INDEX verdicts_status; PRAGMA user_version = 6`)
	ok(t, err)
	ok(t, s.Close())
	s, err = Open(path)
	ok(t, err)
	if got := asJSON(t, must(s.Lessons(t.Context(), LessonFilter{}))(t)); got != want || len(want) < 100 {
		t.Errorf("%s\nwant %s", got, want)
	}
	_, err = s.write.Exec(`PRAGMA foreign_keys = 0; DELETE FROM rounds WHERE run = 1 AND idx = 2; 
		INSERT INTO lessons (run, idx, device_key, kinds, rule) VALUES (2, 1, 'd', 'c', ''); DELETE FROM lessons WHERE run = 4`)
	ok(t, err)
	ok(t, s.Close())
	e := examine(t, path)
	for what, where := range map[string]string{"lessons are of runs without a certified kernel": "run 2", "changes are missing from the lessons": "round 1 of run 4"} {
		if !slices.ContainsFunc(e.Faults, func(f Fault) bool { return f.What == what && f.Count == 1 && f.Examples[0] == where }) {
			t.Errorf("no %s: %+v", what, e.Faults)
		}
	}
	to := filepath.Join(t.TempDir(), FileName)
	must(Salvage(t.Context(), path, to, quiet))(t)
	if e := examine(t, to); !e.Sound() || e.Rows["lessons"] != 2 {
		t.Errorf("%+v", e)
	}
}
