package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/score"
)

var update = flag.Bool("update", false, "write the golden files anew")

// tried is a run whose rounds took a minute each; a speedup of 0 is a candidate
// that was wrong. The fastest is certified.
func tried(speedups ...float64) Data {
	d := Data{Run: kernelwright.Run{ID: 9, Status: kernelwright.RunDone}}
	best := -1
	for i, s := range speedups {
		v := kernelwright.Verdict{Status: kernelwright.Wrong, Reason: "it is wrong", Candidate: string(rune('a' + i))}
		if s > 0 {
			v = timed(s)
			v.Candidate = string(rune('a' + i))
			if best < 0 || s > speedups[best] {
				best = i
			}
		}
		d.Rounds = append(d.Rounds, kernelwright.Round{Index: i, Verdict: v, StartedMS: 1, FinishedMS: 60_001})
	}
	if best >= 0 {
		c := timed(speedups[best])
		c.Status, c.CostS = kernelwright.Certified, map[string]float64{"total": 30, "time": 20}
		d.Rounds[best].Certificate = &c
	}
	return d
}

// timed is a correct verdict: so many times as fast as compile, the fastest.
func timed(s float64) kernelwright.Verdict {
	return kernelwright.Verdict{
		Status: kernelwright.Correct, CandidateMS: 3 / s, Baselines: map[string]float64{"eager": 6, "compile": 3},
		Speedup:  &kernelwright.Speedup{Value: s, Low: 0.9 * s, High: 1.1 * s, Against: "compile"},
		Speedups: map[string]kernelwright.Speedup{"compile": {Value: s}},
	}
}

// floored gives what was timed of a run a floor.
func floored(d Data, ms float64) Data {
	for i := range d.Rounds {
		r := &d.Rounds[i]
		r.Verdict.Floor.MS = ms
		if r.Certificate != nil {
			r.Certificate.Floor.MS = ms
		}
	}
	return d
}

func ended(status kernelwright.RunStatus, reason string) Data {
	return Data{Run: kernelwright.Run{ID: 10, Status: status, Reason: reason}}
}

// aBench is five references under two configurations.
func aBench() Bench {
	b := Bench{
		Bench: kernelwright.Bench{
			ID: 3, Seeds: []int64{0}, Device: "cpu", Command: []string{"kernelwright", "bench", "a folder", "--judge", "rules,none"},
			Baselines: []string{"eager", "compile"}, Precision: "float32", Version: "0.1.0", CreatedMS: 1_790_000_000_000, FinishedMS: 1_790_000_600_000,
			Configurations: []kernelwright.Configuration{
				{Strategy: "rounds", Coder: "builtin", Judge: "rules", Mode: "both", Language: "cpp", Rounds: 3, Settings: `{"rounds":3}`},
				{Strategy: "rounds", Coder: "builtin", Judge: "none", Mode: "none", Language: "cpp", Rounds: 3, Settings: `{"rounds":3}`},
			},
		},
		Machine:  kernelwright.Device{Name: "a CPU", Ceilings: kernelwright.Ceilings{MemoryGBs: 20, CacheGBs: 80, FP32GFLOPs: 100}},
		Versions: map[string]string{"torch": "2.11.0"},
	}
	for _, name := range []string{"softmax", "gelu", "scan", "matmul", "broken"} {
		b.References = append(b.References, kernelwright.Reference{Name: "sub/" + name, Path: "/x/sub/" + name + ".py"})
	}
	advised := floored(tried(0, 2, 1.5), 1.2)
	advised.Rounds[0].Feedback = &kernelwright.Feedback{Kind: kernelwright.Correction, Rule: "overflow"}
	advised.Rounds[1].Feedback = &kernelwright.Feedback{Kind: kernelwright.Optimisation, Rule: "extra_passes"}
	flagged := floored(tried(0, 4, 4), 0.75)
	flagged.Task.Flags = []kernelwright.TaskFlag{kernelwright.FlagConstantOutput}
	for reference, runs := range [][2]Data{
		{advised, floored(tried(1), 1.2)},
		{flagged, tried(0, 0, 0)},
		{floored(tried(0.5, 0.7), 2.88), tried(0.5, 0.7)},
		{ended(kernelwright.RunDeclined, "it would cover no operator"), ended(kernelwright.RunDeclined, "it would cover no operator")},
		{ended(kernelwright.RunInvalid, "get_inputs is missing"), ended(kernelwright.RunInvalid, "get_inputs is missing")},
	} {
		for configuration, d := range runs {
			b.Runs = append(b.Runs, ReduceRun(d, kernelwright.Member{Reference: reference, Configuration: configuration}, Spend{}))
		}
	}
	return b
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestFiguresOfABench(t *testing.T) {
	f := Figures(aBench())
	rules, none := f.Configurations[0], f.Configurations[1]
	if rules.Name != "judge rules" || rules.Runs != 5 || rules.Ended != 5 || rules.Covered != 3 || rules.Certified != 3 || rules.Declined != 1 || rules.Invalid != 1 {
		t.Errorf("%+v", rules)
	}
	fastest, compile, eager := rules.Against[0], rules.Against[2], rules.Against[1]
	if fastest.Baseline != Fastest || compile.Baseline != "compile" || eager.Baseline != "eager" {
		t.Fatalf("%+v", rules.Against)
	}
	for _, c := range []struct {
		what      string
		got, want float64
	}{
		{"correct", rules.Correct.Value, 0.6},
		{"of covered", rules.CorrectOfCovered.Value, 1},
		{"of covered, without a Judge", none.CorrectOfCovered.Value, 2. / 3},
		{"fast_0", fastest.fastP(0).Value, 0.6},
		{"fast_1", fastest.fastP(1).Value, 0.4},
		{"fast_2 is above 2", fastest.fastP(2).Value, 0.2},
		{"fast_1 without a Judge", none.Against[0].fastP(1).Value, 0},
		{"fast_0.8 without a Judge", none.Against[0].fastP(0.8).Value, 0.2},
		{"geomean", fastest.Geomean.Value, math.Cbrt(2 * 4 * 0.7)},
		{"geomean of all", fastest.GeomeanAll.Value, math.Pow(2*4*0.7, 0.2)},
		{"median", float64(fastest.Median), 2},
		{"first quartile", float64(fastest.Q1), 1.35},
		{"mean", float64(fastest.Mean), 6.7 / 3},
		{"eager is twice as slow", eager.Geomean.Value, 2 * fastest.Geomean.Value},
		{"rounds of a covered run", float64(rules.Rounds), 8. / 3},
		{"minutes, with half of one for a certificate", float64(rules.Minutes), (8 + 1.5) / 3},
		{"dollars", float64(rules.USD), 0},
		{"ratio", f.Pairs[0].Ratio.Value, math.Pow(2*4*1, 0.2)},
		{"ratio before any round", f.Pairs[0].ByRounds[0].Value, 1},
		{"ratio after one: both are slower on one", f.Pairs[0].ByRounds[1].Value, 1},
		{"ratio after two", f.Pairs[0].ByRounds[2].Value, math.Pow(2*4*1, 0.2)},
		{"ratio's interval holds what is in no pair out", f.Pairs[0].ByRounds[2].High, f.Pairs[0].Ratio.High},
		{"curve at 0", rules.ByRounds[0].Value, 1},
		{"curve at 1: one is slower", rules.ByRounds[1].Value, math.Pow(0.5, 0.2)},
		{"curve at 2", rules.ByRounds[2].Value, math.Pow(2*4*0.7, 0.2)},
		{"curve at 3", rules.ByRounds[3].Value, math.Pow(2*4*0.7, 0.2)},
		{"curve at its last minute", rules.ByMinutes[curveSteps].Value, math.Pow(2*4*0.7, 0.2)},
		{"the last minute", rules.ByMinutes[curveSteps].At, 3},
	} {
		if !near(c.got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, c.got, c.want)
		}
	}
	if p := f.Pairs[0]; p.References != 5 || p.Both != 2 || p.OnlyA != 1 || p.OnlyB != 0 || len(f.Pairs) != 1 {
		t.Errorf("%+v", f.Pairs)
	}
	if len(rules.ByUSD) != 0 || len(rules.ByRounds) != 4 {
		t.Errorf("%+v", rules)
	}
}

// Kernels are told apart by how near the roofline the fastest baseline comes: 3 ms
// in each of these, over the kernel's time its speedup.
func TestHowNearTheRoofline(t *testing.T) {
	// The certificate tells it, whatever the round's quick verdict was.
	first := floored(tried(2), 1.2)
	first.Rounds[0].Verdict.Floor.MS, first.Rounds[0].Verdict.CandidateMS = 2.9, 2.9
	wrong := floored(tried(0), 1)
	b := aBench()
	b.Configurations, b.References, b.Runs = b.Configurations[:1], nil, nil
	for i, d := range []Data{
		first,                       // the kernel reaches 80 %, the baseline 40 %
		floored(tried(1.25), 2.4),   // 100 %, 80 %
		floored(tried(1), 2.7),      // 90 %, 90 %
		floored(tried(0.9), 2.97),   // 89.1 %, 99 %
		floored(tried(0.98), 3.3),   // both are faster than the floor, which is 100 %
		tried(3), wrong, tried(1.5), // no floor, no kernel, no floor
	} {
		b.References = append(b.References, kernelwright.Reference{Name: string(rune('a' + i))})
		b.Runs = append(b.Runs, ReduceRun(d, kernelwright.Member{Reference: i}, Spend{}))
	}
	c := Figures(b).Configurations[0]
	for i, want := range []struct {
		kernels                             int
		geomean, low, high, kernel, fastest float64
	}{
		{2, math.Sqrt(2 * 1.25), 1.25, 2, 0.9, 0.6},
		{1, 1, 1, 1, 0.9, 0.9},
		{2, math.Sqrt(0.9 * 0.98), 0.9, 0.98, (0.891 + 1) / 2, 0.995},
		{5, math.Pow(2*1.25*0.9*0.98, 0.2), 0, 0, 0.9, 0.9},
	} {
		got := c.Roofline[i]
		if got.Kernels != want.kernels || !near(got.Geomean.Value, want.geomean) || !near(float64(got.Kernel), want.kernel) || !near(float64(got.Fastest), want.fastest) {
			t.Errorf("%s: %+v, geomean %+v", got.Band, got, got.Geomean)
		}
		// Draws without any kernel of a row do not count in it.
		if want.low > 0 && (!near(got.Geomean.Low, want.low) || !near(got.Geomean.High, want.high)) {
			t.Errorf("%s: %+v", got.Band, got.Geomean)
		}
	}
	table := rooflineTable(Figures(b))
	if c.NoRoofline != 2 || !strings.HasPrefix(table.Notes[len(table.Notes)-1], "2 certified kernels of ") {
		t.Errorf("%d, %q", c.NoRoofline, table.Notes)
	}
	if rows := b.referenceRows(); rows[0].Cells[0][0].Roofline != "80 % of the roofline, compile 40 %" || rows[5].Cells[0][0].Roofline != "" || rows[6].Cells[0][0].Roofline != "" {
		t.Errorf("%+v", rows)
	}

	for share, want := range map[float64]string{0: "below 85 %", 0.8499: "below 85 %", 0.85: "85 to 95 %", 0.9499: "85 to 95 %", 0.95: "95 % and above", 1: "95 % and above"} {
		var held []string
		for _, band := range bands {
			if band.holds(BenchRun{Certified: true, Roofline: &Roofline{Kernel: 0.5, Fastest: share}}) {
				held = append(held, band.Band)
			}
		}
		if !slices.Equal(held, []string{want, "all"}) {
			t.Errorf("%v is in %q", share, held)
		}
	}

	for name, change := range map[string]func(*kernelwright.Verdict){
		"no floor":                 func(v *kernelwright.Verdict) { v.Floor.MS = 0 },
		"no speedup":               func(v *kernelwright.Verdict) { v.Speedup = nil },
		"no time of the candidate": func(v *kernelwright.Verdict) { v.CandidateMS = 0 },
		"none of the fastest":      func(v *kernelwright.Verdict) { v.Baselines = map[string]float64{"eager": 6} },
	} {
		v := timed(2)
		v.Floor.MS = 1
		if change(&v); rooflineOf(v) != nil {
			t.Errorf("%s: %+v", name, rooflineOf(v))
		}
	}
}

func TestWhatARunOfABenchCameTo(t *testing.T) {
	// Correct in its rounds and not certified is no kernel.
	refused := tried(2)
	refused.Rounds[0].Certificate.Status = kernelwright.Wrong
	r := ReduceRun(refused, kernelwright.Member{}, Spend{})
	if r.Certified || !r.Covered || !r.Ended || r.Rounds[0].Speedup != 0 || r.Speedup != nil {
		t.Errorf("%+v", r)
	}
	// A verdict that others reached before counts with its time; the same source
	// again in one run does not.
	remembered := tried(2, 2)
	for i := range remembered.Rounds {
		remembered.Rounds[i].Verdict.Candidate = "same"
		remembered.Rounds[i].Verdict.Cached = true
		remembered.Rounds[i].Verdict.CostS = map[string]float64{"total": 7}
		remembered.Rounds[i].FinishedMS = 1001
	}
	r = ReduceRun(remembered, kernelwright.Member{}, Spend{kernelwright.Spend{USD: 0.5}, map[int]float64{0: 0.2, 1: 0.3}})
	if r.Remembered != 1 || !near(r.Rounds[0].Seconds, 8) || !near(r.Rounds[1].Seconds, 1) || !near(r.Seconds, 39) || r.Rounds[1].USD != 0.3 {
		t.Errorf("%+v", r)
	}
	// A baseline without an interval is told by its time.
	if got := r.Speedups["eager"]; !near(got, 4) {
		t.Error(got)
	}
	open := tried(2)
	open.Run.Status = kernelwright.RunRunning
	if r := ReduceRun(open, kernelwright.Member{}, Spend{}); r.Ended {
		t.Errorf("%+v", r)
	}
}

func TestWhatModelsCost(t *testing.T) {
	b := aBench()
	b.Configurations, b.References = b.Configurations[:1], b.References[:2]
	b.Runs = []BenchRun{
		ReduceRun(tried(1, 4), kernelwright.Member{}, Spend{kernelwright.Spend{USD: 4, Calls: 3}, map[int]float64{0: 1, 1: 3}}),
		ReduceRun(tried(1), kernelwright.Member{Reference: 1}, Spend{kernelwright.Spend{USD: 2, Calls: 2, Unpriced: 1}, map[int]float64{0: 2}}),
	}
	f := Figures(b)
	c := f.Configurations[0]
	if c.USD != 3 || c.Spend != (kernelwright.Spend{USD: 6, Calls: 5, Unpriced: 1}) {
		t.Errorf("%+v", c)
	}
	at := func(usd float64) float64 {
		value := 0.0
		for _, p := range c.ByUSD {
			if p.At <= usd {
				value = p.Value
			}
		}
		return value
	}
	if at(0) != 1 || at(3.9) != 1 || !near(at(4), 2) {
		t.Errorf("%+v", c.ByUSD)
	}
	if len(benchCharts(f)) != 3 || !strings.Contains(strings.Join(b.resultTable(f).Notes, " "), "1 call of models") {
		t.Error("what models cost is told and drawn")
	}
}

func TestFiguresOfABenchThatIsNotDone(t *testing.T) {
	b := aBench()
	b.Runs = b.Runs[:1]
	f := Figures(b)
	if !strings.HasPrefix(f.Headline, "So far, after 1 of 10 runs: ") || f.Configurations[1].Correct != nil || f.Pairs[0].Ratio != nil {
		t.Errorf("%+v", f)
	}
	b.Runs = nil
	f = Figures(b)
	if f.Headline != "No run has ended yet." {
		t.Error(f.Headline)
	}
	for _, b := range []Bench{b, aBench()} {
		var out bytes.Buffer
		f := Figures(b)
		if _, err := json.Marshal(f); err != nil {
			t.Error(err)
		}
		for _, write := range []func() error{
			func() error { return BenchTable(&out, b, f) }, func() error { return BenchMarkdown(&out, b, f) }, func() error { return BenchHTML(&out, b, f) },
		} {
			if err := write(); err != nil {
				t.Error(err)
			}
		}
		if strings.Contains(out.String(), "NaN") || strings.Contains(out.String(), "Inf") {
			t.Errorf("a figure that is none: %s", out.String())
		}
	}
}

func TestSeedsOfOneReferenceAreNoReferencesOfTheirOwn(t *testing.T) {
	b := aBench()
	b.Seeds = []int64{0, 1}
	b.Configurations = b.Configurations[:1]
	b.Runs = nil
	for reference, s := range []float64{2, 1, 4} {
		for _, seed := range b.Seeds {
			b.Runs = append(b.Runs, ReduceRun(tried(s), kernelwright.Member{Reference: reference, Seed: seed}, Spend{}))
		}
	}
	two := Figures(b).Configurations[0]
	one := slices.DeleteFunc(slices.Clone(b.Runs), func(r BenchRun) bool { return r.Seed == 1 })
	b.Runs, b.Seeds = one, []int64{0}
	if alone := Figures(b).Configurations[0]; *alone.Against[0].Geomean != *two.Against[0].Geomean || two.Certified != 6 {
		t.Errorf("%+v and %+v", alone.Against[0].Geomean, two.Against[0].Geomean)
	}
}

func TestGoldenReportOfABench(t *testing.T) {
	b := aBench()
	b.Runs[0].Report, b.Runs[0].Kernel = "judge rules/sub/softmax.report.html", "judge rules/sub/softmax.best.py"
	f := Figures(b)
	for name, write := range map[string]func(*bytes.Buffer) error{
		"bench.txt":  func(w *bytes.Buffer) error { return BenchTable(w, b, f) },
		"bench.md":   func(w *bytes.Buffer) error { return BenchMarkdown(w, b, f) },
		"bench.html": func(w *bytes.Buffer) error { return BenchHTML(w, b, f) },
	} {
		var out bytes.Buffer
		if err := write(&out); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%s is not as it was: go test ./report -run Golden -update writes it anew, then look at the difference", name)
		}
		if name == "bench.html" && (strings.Contains(out.String(), "<script") || strings.Contains(out.String(), "://")) {
			t.Error("the page must load nothing")
		}
	}
}

// A bench that was kept as JSON with its figures makes the same page.
func TestFiguresThatWereKeptMakeTheSamePage(t *testing.T) {
	type both struct {
		Bench   Bench
		Figures BenchFigures
	}
	empty := aBench()
	empty.Runs = nil // all that is then unknown is null
	for _, b := range []Bench{aBench(), empty} {
		fresh := both{b, Figures(b)}
		text, err := json.Marshal(fresh)
		if err != nil {
			t.Fatal(err)
		}
		var kept both
		if err := json.Unmarshal(text, &kept); err != nil {
			t.Fatal(err)
		}
		var pages [2]bytes.Buffer
		for i, of := range []both{fresh, kept} {
			if err := BenchHTML(&pages[i], of.Bench, of.Figures); err != nil {
				t.Fatal(err)
			}
		}
		if pages[0].String() != pages[1].String() {
			t.Errorf("%s\nbecame\n%s", pages[0].String(), pages[1].String())
		}
	}
}

// Names of files, of models and what references say of themselves are foreign.
func TestABenchOfHostileNames(t *testing.T) {
	const evil = "x</td><script>alert(1)</script>\x1b[2J](http://a) | `b` \u202e"
	b := aBench()
	b.References[0].Name, b.Configurations[0].Coder, b.Command = evil, evil, []string{"kernelwright", evil}
	b.Runs[2].Reason, b.Runs[6].Reason, b.Runs[0].Report = evil, evil, "a/"+evil
	f := Figures(b)
	var html, markdown, text bytes.Buffer
	for _, err := range []error{BenchHTML(&html, b, f), BenchMarkdown(&markdown, b, f), BenchTable(&text, b, f)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, out := range map[string]string{"page": html.String(), "Markdown": markdown.String(), "text": text.String()} {
		if strings.ContainsAny(out, "\x1b\u202e") {
			t.Errorf("the %s has control characters", name)
		}
	}
	if strings.Contains(html.String(), "<script>") {
		t.Error("the page runs what a name says")
	}
	if live := regexp.MustCompile("[^\\\\](<script>|\\]\\(http:|\\| `b`)").FindString(markdown.String()); live != "" {
		t.Errorf("the Markdown has %q", live)
	}
}

func TestNamesOfConfigurations(t *testing.T) {
	base := kernelwright.Configuration{Strategy: "rounds", Coder: "builtin", Judge: "rules", Mode: "both", Language: "cpp", Rounds: 5}
	with := func(change func(*kernelwright.Configuration)) kernelwright.Configuration {
		c := base
		change(&c)
		return c
	}
	for _, c := range []struct {
		configurations []kernelwright.Configuration
		want           []string
	}{
		{[]kernelwright.Configuration{base}, []string{"strategy rounds, coder builtin, judge rules, cpp, 5 rounds, without lessons"}},
		{[]kernelwright.Configuration{base, with(func(c *kernelwright.Configuration) { c.Lessons = true })}, []string{"without lessons", "with lessons"}},
		{[]kernelwright.Configuration{base, with(func(c *kernelwright.Configuration) { c.Metrics = "full" })}, []string{"selected metrics", "full metrics"}},
		{[]kernelwright.Configuration{with(func(c *kernelwright.Configuration) { c.Metrics = "full" })}, []string{"strategy rounds, coder builtin, judge rules, cpp, 5 rounds, without lessons, full metrics"}},
		{
			[]kernelwright.Configuration{base, with(func(c *kernelwright.Configuration) { c.Rounds = 1 }), with(func(c *kernelwright.Configuration) { c.Mode = "correction" })},
			[]string{"judge rules, 5 rounds", "judge rules, 1 round", "judge rules (correction), 5 rounds"},
		},
		{[]kernelwright.Configuration{base, with(func(c *kernelwright.Configuration) { c.Coder = "openai:x" })}, []string{"coder builtin", "coder openai:x"}},
	} {
		if got := ConfigurationNames(c.configurations); !slices.Equal(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestChartsOfABenchHoldWhatTheyShow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		speedup, length := rapid.Float64Range(1e-6, 1e5), rapid.Float64Range(1e-4, 1e4)
		f := BenchFigures{Configurations: make([]ConfigurationFigures, 2)}
		for i := range f.Configurations {
			rounds, minutes := rapid.IntRange(1, 12).Draw(t, "rounds"), length.Draw(t, "minutes")
			for at := range rounds + 1 {
				v := speedup.Draw(t, "speedup")
				point := score.Interval{Value: v, Low: v / 2, High: v * 2}
				f.Configurations[i].ByRounds = append(f.Configurations[i].ByRounds, CurvePoint{float64(at), point})
				f.Configurations[i].ByMinutes = append(f.Configurations[i].ByMinutes, CurvePoint{minutes * float64(at), point})
			}
		}
		charts := benchCharts(f)
		if len(charts) != 2 {
			t.Errorf("%d charts", len(charts))
		}
		inside := regexp.MustCompile(`[ML]([0-9.]+) ([0-9.]+)`)
		for _, c := range charts {
			if c.Even < c.Top || c.Even > c.Bottom {
				t.Errorf("equal speed lies at %v of %v to %v", c.Even, c.Top, c.Bottom)
			}
			if len(c.Ticks) == 0 || len(c.Ticks) > 10 || len(c.Marks) < 2 || len(c.Marks) > 13 {
				t.Errorf("%d and %d ticks", len(c.Ticks), len(c.Marks))
			}
			for _, l := range c.Lines {
				path := l.Path + strings.TrimSuffix(l.Band, "Z")
				if rest := inside.ReplaceAllString(path, ""); rest != "" {
					t.Errorf("%q in %s", rest, path)
				}
				for _, m := range inside.FindAllStringSubmatch(path, -1) {
					x, err1 := strconv.ParseFloat(m[1], 64)
					y, err2 := strconv.ParseFloat(m[2], 64)
					if err1 != nil || err2 != nil || x < c.Left || x > c.Right || y < c.Top || y > c.Bottom {
						t.Errorf("%s lies outside", m[0])
					}
				}
			}
		}
	})
}

// A round that follows advice is held against the fastest until the advice was
// given, whichever round that was, and not against others of its generation.
func TestWhatCameOfAdvice(t *testing.T) {
	said := func(kind kernelwright.FeedbackKind, rule string) *kernelwright.Feedback {
		return &kernelwright.Feedback{Kind: kind, Rule: rule}
	}
	at := func(i int) *int { return &i }
	d := tried(0, 1, 2, 1.5, 2.1, 0, 3, 2.99)
	for i, f := range []*kernelwright.Feedback{
		said(kernelwright.Correction, "overflow"),      // 1: correct
		said(kernelwright.Optimisation, "tail"),        // 2: twice as fast
		said(kernelwright.Optimisation, "tail"),        // 3: slower than 2
		said(kernelwright.Optimisation, "spills"),      // 4: faster than 3 that was advised, and than 2 that was the fastest
		said(kernelwright.Optimisation, "tail"),        // 5: wrong
		nil,                                            // 6 and 7 are of a beam, both after 4
		said(kernelwright.Stop, "schedules_exhausted"), // 7 is not after it
	} {
		d.Rounds[i].Feedback = f
	}
	d.Rounds[6].Parent, d.Rounds[7].Parent = at(4), at(4)
	var came []string
	for _, r := range ReduceRun(d, kernelwright.Member{}, Spend{}).Rounds {
		word := "-"
		if r.Advice != nil {
			word = r.Advice.Rule + " " + r.Advice.Came
		}
		came = append(came, word)
	}
	want := []string{"-", "overflow helped", "tail helped", "tail slower", "spills helped", "tail failed", "tail helped", "tail helped"}
	if !slices.Equal(came, want) {
		t.Errorf("%q, want %q", came, want)
	}
	// Intervals that overlap are noise, whatever the medians are.
	noisy := tried(1, 1.1)
	noisy.Rounds[0].Feedback = said(kernelwright.Optimisation, "tail (the answer of x could not be read)")
	noisy.Rounds[0].Verdict.Timing.Candidate = kernelwright.Measurement{LowMS: 2.5, HighMS: 3.5}
	noisy.Rounds[1].Verdict.Timing.Candidate = kernelwright.Measurement{LowMS: 2.4, HighMS: 3.0}
	reduced := ReduceRun(noisy, kernelwright.Member{Reference: 1}, Spend{})
	if a := reduced.Rounds[1].Advice; a == nil || *a != (Advice{Rule: "tail", Kind: kernelwright.Optimisation, Came: "same", Ratio: a.Ratio}) || !near(a.Ratio, 1.1) {
		t.Errorf("%+v", a)
	}

	b := aBench()
	b.Configurations = b.Configurations[:1]
	b.Runs = []BenchRun{ReduceRun(d, kernelwright.Member{}, Spend{}), reduced}
	figures := Figures(b).Configurations[0].Advice
	if len(figures) != 3 {
		t.Fatalf("%+v", figures)
	}
	tail := figures[1]
	if figures[0].Rule != "overflow" || tail.Rule != "tail" || tail.Followed != 6 || tail.Helped != 3 || tail.Slower != 1 || tail.Failed != 1 || !near(tail.Share.Value, 0.5) ||
		tail.Share.Low != 0 || !near(tail.Share.High, 0.6) || !near(float64(tail.Ratio), math.Pow(2*0.75*(3/2.1)*(2.99/2.1)*1.1, 0.2)) {
		t.Errorf("%+v", figures)
	}
}

// A stop that was not taken was right where nothing after it was faster than the
// fastest until then.
func TestRefusedStops(t *testing.T) {
	wanted := &kernelwright.Feedback{Kind: kernelwright.Optimisation, Rule: "tail", WantedStop: "It is fast enough."}
	for _, c := range []struct {
		name     string
		speedups []float64 // by round, 0: it is wrong
		stops    []int
		want     Stops
		said     string
	}{
		{"none", []float64{1, 2}, nil, Stops{}, ""},
		{"wrong: it gets faster in the end", []float64{1, 0.9, 1.5}, []int{0}, Stops{1, 1, 0}, "the Judge wanted to stop after round 0, and there was something to try; it was right (no later round was faster) in 0 of 1"},
		{"right: an earlier one stays the fastest", []float64{2, 1, 1.5}, []int{1}, Stops{1, 1, 1}, "the Judge wanted to stop after round 1, and there was something to try; it was right (no later round was faster) in 1 of 1"},
		{"right once", []float64{1, 2, 0, 2.001}, []int{0, 1}, Stops{2, 2, 1}, "the Judge wanted to stop after rounds 0, 1, and there was something to try; it was right (no later round was faster) in 1 of 2"},
		{"nobody knows", []float64{1, 2}, []int{1}, Stops{1, 0, 0}, "the Judge wanted to stop after round 1, and there was something to try"},
	} {
		d := tried(c.speedups...)
		for _, at := range c.stops {
			d.Rounds[at].Feedback = wanted
		}
		got, _ := stopsOf(d.Rounds)
		if got != c.want || RefusedStops(d.Rounds) != c.said {
			t.Errorf("%s: %+v %q", c.name, got, RefusedStops(d.Rounds))
		}
		if s := Summarise(d).Stops; (s != nil) != (c.want.Refused > 0) || s != nil && *s != c.want {
			t.Errorf("%s: the summary has %+v", c.name, s)
		}
	}
	// What looked faster and was not certified is no proof that it was wrong.
	d := tried(1, 3)
	d.Rounds[0].Feedback = wanted
	d.Rounds[1].Certificate = &kernelwright.Verdict{Status: kernelwright.Wrong}
	if got, _ := stopsOf(d.Rounds); got != (Stops{1, 1, 1}) {
		t.Errorf("%+v", got)
	}

	b := aBench()
	b.Configurations = b.Configurations[:1]
	b.Runs = []BenchRun{ReduceRun(d, kernelwright.Member{}, Spend{}), ReduceRun(d, kernelwright.Member{Reference: 1}, Spend{})}
	f := Figures(b)
	if got := f.Configurations[0].Stops; got != (Stops{2, 2, 2}) {
		t.Errorf("%+v", got)
	}
	notes := strings.Join(adviceTable(f).Notes, "\n")
	if want := "the Judge wanted to stop after 2 rounds, and there was something to try; it was right (no later round was faster) in 2 of 2"; !strings.Contains(notes, want) {
		t.Errorf("the notes are\n%s", notes)
	}
}

func TestShellCommands(t *testing.T) {
	for want, words := range map[string][]string{
		`kernelwright bench 'a folder' --only 'soft*'`: {"kernelwright", "bench", "a folder", "--only", "soft*"},
		`x '' 'it'\''s'`: {"x", "", "it's"},
	} {
		if got := shell(words); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
