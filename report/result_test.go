package report

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

// with returns the finished run with another speedup on its certificate.
func with(s *kernelwright.Speedup) Data {
	d := finished()
	c := d.Rounds[2].Certificate
	c.Speedup, c.Speedups = s, nil
	if s != nil {
		c.Baselines = map[string]float64{s.Against: s.Value * c.CandidateMS}
	}
	return d
}

func TestResults(t *testing.T) {
	speedup := func(value, low, high float64) *kernelwright.Speedup {
		return &kernelwright.Speedup{Value: value, Low: low, High: high, Against: "compile"}
	}
	uncertified, wrong := finished(), finished()
	uncertified.Rounds[2].Certificate = nil
	wrong.Rounds = wrong.Rounds[1:2]
	running := finished()
	running.Run.Status = kernelwright.RunRunning
	for name, tt := range map[string]struct {
		d                       Data
		result, headline, table string
		handedOut               bool
	}{
		"faster":                    {with(speedup(2.14, 2.03, 2.25)), "faster", "2.14× the speed of compile (95 % interval 2.03 to 2.25), certified.", "certified", true},
		"no difference":             {with(speedup(1.02, 0.98, 1.06)), "no_difference", "No measurable difference to compile: 1.02× (", "certified", true},
		"too wide an interval":      {with(speedup(1.1, 0.6, 1.9)), "undecided", "Too wide an interval to tell it from compile", "certified", true},
		"up to exactly as fast":     {with(speedup(0.95, 0.9, 1)), "no_difference", "No measurable difference to compile", "certified", true},
		"slower":                    {with(speedup(0.9, 0.81, 0.95)), "nothing_faster", "Nothing faster than compile was found: the best certified kernel has 0.90× its speed (95 % interval 0.81 to 0.95) and is not handed out.", "nothing faster", false},
		"without a speedup":         {with(nil), "not_timed", "A kernel is certified; it was not timed.", "certified", true},
		"correct, at quick":         {uncertified, "not_certified", "2.14× the speed of compile (95 % interval 2.03 to 2.25), correct, not certified.", "correct (quick)", false},
		"no candidate was correct":  {wrong, "not_certified", "No candidate was correct.", "wrong", false},
		"still going on":            {running, "running", "2.14× the speed of compile", "certified", true},
		"a reference that is wrong": {Data{Run: kernelwright.Run{TaskName: "x", Status: kernelwright.RunInvalid, Reason: "no get_inputs"}}, "invalid", "no get_inputs", "invalid", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := Summarise(tt.d)
			if s.Result != tt.result {
				t.Errorf("the result is %q, want %q", s.Result, tt.result)
			}
			if got := headline(tt.d); !strings.HasPrefix(got, tt.headline) {
				t.Errorf("the headline is %q, want %q", got, tt.headline)
			}
			var table bytes.Buffer
			if err := Table(&table, []Summary{s}); err != nil || !strings.Contains(table.String(), "  "+tt.table+"  ") {
				t.Errorf("the table lacks %q:\n%s", tt.table, table.String())
			}
			certificate, exported, ok, err := Certify(tt.d, "softmax.best.py")
			if err != nil || (exported != "") != tt.handedOut {
				t.Errorf("handed out %q, %v", exported, err)
			}
			if !ok {
				return
			}
			var c Certificate
			if err := json.Unmarshal(certificate, &c); err != nil {
				t.Fatal(err)
			}
			if c.File != "" != tt.handedOut || c.SHA256 != tt.d.Rounds[2].Certificate.ExportedSHA256 || c.Says != headline(tt.d) {
				t.Errorf("file %q, %q", c.File, c.Says)
			}
			if says := strings.Join(c.Notes, "; "); strings.Contains(says, "kernelwright export 3 --round 2 --out PATH") == tt.handedOut {
				t.Errorf("notes: %q", says)
			}
			html, markdown := pages(t, tt.d)
			for _, page := range []string{html, markdown} {
				if strings.Contains(page, "kernelwright export 3 --round 2 --out PATH") == tt.handedOut {
					t.Error("the report says how a kernel is had that is not handed out, and only then")
				}
			}
			wellFormed(t, html)
		})
	}
	slow := Summarise(with(speedup(0.9, 0.81, 0.95)))
	slow.Report = "out/softmax.report.html"
	var b bytes.Buffer
	if err := Table(&b, []Summary{slow}); err != nil {
		t.Fatal(err)
	}
	want := `task     rounds  verdict         candidate  eager  compile  max-autotune             speedup  against  headroom  report                   kernel
softmax       4  nothing faster    1.40 ms      –  1.26 ms             –  0.90× [0.81, 0.95]  compile      70 %  out/softmax.report.html  –

softmax: nothing faster was found: the kernel is slower than compile by its whole interval, so no file of it was written; ` + "`kernelwright export 3 --round 2 --out PATH`" + ` writes it
headroom: the share of the kernel's time that the roofline needs; 100 % is as fast as this hardware can be
`
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

// A certificate begins with what matters, is of the moment at which certification
// ended, and the report shows the same.
func TestACertificateBeginsWithWhatMatters(t *testing.T) {
	d := finished()
	c := d.Rounds[2].Certificate
	d.Rounds[2].FinishedMS, d.Rounds[2].CertifiedMS = 1_790_000_030_000, 1_790_000_055_000
	c.Correctness.General = new(bool)
	c.Evidence = []string{"seen by both clocks", "inputs of other shapes: right on [1024, 1024]; [4096, 1024], fails on [2048, 113] (9 of 231424 elements are off)"}
	c.Assumes = kernelwright.Assumptions{"takes shift = 1 for granted"}
	c.Cached = true
	b, _, _, err := Certify(d, "softmax.best.py")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	dec := json.NewDecoder(bytes.NewReader(b))
	for depth := 0; ; {
		tok, err := dec.Token()
		if err != nil {
			break
		}
		switch tok := tok.(type) {
		case json.Delim:
			if depth += map[json.Delim]int{'{': 1, '[': 1, '}': -1, ']': -1}[tok]; depth == 0 {
				break
			}
		case string:
			if depth == 1 {
				keys = append(keys, tok)
			}
		}
	}
	order := []string{"says", "result", "file", "sha256", "issued", "on", "candidate_ms", "baselines", "speedup", "right", "other_sizes", "assumes", "flags", "notes", "run", "task", "verdict"}
	last := -1
	for _, key := range order {
		at := slices.Index(keys, key)
		if at <= last {
			t.Errorf("%q comes at %d of %q", key, at, keys)
		}
		last = at
	}
	var got Certificate
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if got.Format != CertificateFormat || got.Issued != "2026-09-21 14:14:15 UTC" || got.On != "cpu, a CPU" {
		t.Errorf("format %d, issued %q on %q", got.Format, got.Issued, got.On)
	}
	if want := "right on 1 family of inputs over 10 seeds, held to float32; not on 1 family that an honest form fails, too"; got.Right != want {
		t.Errorf("right: %q", got.Right)
	}
	sizes := "right on [1024, 1024]; [4096, 1024], fails on [2048, 113] (9 of 231424 elements are off)"
	if got.OtherSizes != sizes || len(got.Assumes) != 1 || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "reached before") {
		t.Errorf("%+v", got)
	}
	d.File = "softmax.best.py"
	html, markdown := pages(t, d)
	plain := strings.ReplaceAll(markdown, `\`, "")
	for _, want := range []string{"softmax.best.py", got.SHA256, got.Issued, got.On, got.Right, sizes, "it takes shift = 1 for granted", "reached before"} {
		if strings.Count(html, want) != 1 || strings.Count(plain, want) != 1 {
			t.Errorf("the report has %q %d and %d times", want, strings.Count(html, want), strings.Count(plain, want))
		}
	}
	if !strings.Contains(html, "seen by both clocks") || !strings.Contains(plain, "Seen by both clocks.") {
		t.Error("the report lacks what the certificate rests on")
	}
	if strings.Index(plain, "## Certificate") > strings.Index(plain, "## Time") {
		t.Error("the certificate comes first")
	}
}

func TestOtherSizes(t *testing.T) {
	no := false
	for name, tt := range map[string]struct {
		general  *bool
		evidence []string
		want     string
	}{
		"not tried":             {nil, []string{"seen by both clocks"}, ""},
		"all are right":         {yes(), []string{"inputs of other shapes: right on [8, 40]; [17, 40]"}, "right on [8, 40]; [17, 40]"},
		"some are":              {&no, []string{"inputs of other shapes: right on [8, 40], fails on [16, 41] (it raises AssertionError)"}, "right on [8, 40], fails on [16, 41] (it raises AssertionError)"},
		"of a record without":   {&no, nil, "fails on some that were tried"},
		"of an earlier version": {yes(), nil, "right on all that were tried"},
		"of no kind text":       {&no, []string{"inputs of other shapes: fails on [1]\x1b[2J"}, "fails on [1]⟨U+001B⟩[2J"},
	} {
		v := kernelwright.Verdict{Evidence: tt.evidence, Correctness: kernelwright.CorrectnessReport{General: tt.general}}
		if got := otherSizes(v); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// Who divides the times that are shown gets the speedup that is shown, or reads why
// not.
func TestQuotients(t *testing.T) {
	of := func(protocol string, marked bool) kernelwright.Verdict {
		return kernelwright.Verdict{
			Status: kernelwright.Certified, CandidateMS: 2, Baselines: map[string]float64{"eager": 5.3, "compile": 2, "max-autotune": 2.2},
			Speedup: &kernelwright.Speedup{Value: 0.8, Low: 0.6, High: 1.1, Against: "compile"}, // the times give 1
			Speedups: map[string]kernelwright.Speedup{
				"eager": {Value: 2.6, Low: 2, High: 3, Against: "eager"}, "max-autotune": {Value: 1.5, Low: 1, High: 2, Against: "max-autotune"},
			},
			Timing: kernelwright.TimingReport{Protocol: protocol, Marked: marked},
		}
	}
	const both = "the speedup is 0.80× against compile, where the times give 1.00×, 1.50× against max-autotune, where the times give 1.10×: "
	for name, tt := range map[string]struct {
		v     kernelwright.Verdict
		names []string
		want  string
	}{
		"in turns":           {of("interleaved", false), nil, both + "a speedup compares windows that ran in turns"},
		"by another clock":   {of("interleaved", true), nil, both + "the referee's clock decided the speedup"},
		"not together":       {of("cached baselines", false), nil, both + "the two were not measured together"},
		"of the headline":    {of("interleaved", false), []string{"compile"}, "the speedup is 0.80× against compile, where the times give 1.00×: "},
		"of one that agrees": {of("interleaved", false), []string{"eager"}, ""},
		"not timed":          {kernelwright.Verdict{Speedup: &kernelwright.Speedup{Value: 2, Against: "eager"}, Baselines: map[string]float64{"eager": 1}}, nil, ""},
	} {
		if got := Quotients(tt.v, tt.names...); !strings.HasPrefix(got, tt.want) || (tt.want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	// On either side of five per cent.
	for value, told := range map[float64]bool{1.06: true, 1.04: false, 0.96: false, 0.94: true} {
		v := of("interleaved", false)
		v.Speedup.Value = value
		if got := Quotients(v, "compile"); (got != "") != told {
			t.Errorf("%v: %q", value, got)
		}
	}
	d := finished()
	d.Rounds[2].Certificate.Baselines["compile"] = 2
	html, markdown := pages(t, d)
	for _, page := range []string{html, strings.ReplaceAll(markdown, `\`, "")} {
		if !strings.Contains(page, "where the times give 1.43×") {
			t.Error("the report does not say why")
		}
	}
	if s := Summarise(d); len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "2.14× against compile, where the times give 1.43×") {
		t.Errorf("%q", s.Notes)
	}
}

// Certified figures stand wherever "certified" does, and quick ones are called so.
func TestQuickAndCertifiedFigures(t *testing.T) {
	d := finished()
	c := d.Rounds[2].Certificate
	c.CandidateMS, c.Speedup = 1.6, &kernelwright.Speedup{Value: 1.88, Low: 1.8, High: 1.95, Against: "max-autotune"}
	c.CostS = map[string]float64{"turns": 22.5}
	failed := verdict(kernelwright.Wrong, 0, 0)
	d.Rounds[3].Certificate = &failed
	html, markdown := pages(t, d)
	plain := strings.ReplaceAll(markdown, `\`, "")
	for _, row := range []string{
		"| 0 | correct (quick) | 2.20 ms | 1.36× [1.29, 1.43] | compile |",
		"| 1 | wrong | – | – | – |",
		"| **2** | certified | 1.60 ms | 1.88× [1.80, 1.95] | max-autotune |",
		"| 3 | correct (quick), certification: wrong | 1.50 ms | 2.00× ",
		"- Quick: 1.40 ms, 2.14× [2.03, 2.25] against compile\n- Certified: 1.60 ms, 1.88× [1.80, 1.95] against max-autotune\n",
		"## Time, as certified",
	} {
		if !strings.Contains(plain, row) {
			t.Errorf("the Markdown lacks %q", row)
		}
	}
	for _, want := range []string{
		`<td><span class="chip certified">certified</span></td><td class="n">1.60 ms</td><td class="n">1.88× [1.80, 1.95]</td><td>max-autotune</td>`,
		`<td><span class="chip correct">correct (quick)</span></td><td class="n">2.20 ms</td>`,
		`<span class="chip failed">correct (quick), certification: wrong</span>`,
		"<title>round 2, next candidate: certified, 1.88× [1.80, 1.95] against max-autotune, 1.60 ms</title>",
		"<title>round 0, first candidate: correct (quick), 1.36× ",
		"Against the fastest baseline of each verdict: compile, max-autotune, with 95 % intervals",
		`class="dot kept"`, `class="dot quick"`, "What its certification cost", "turns</i> 22.5",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	c2, ok := newChart(d)
	if !ok || !c2.Points[2].Certified || c2.Points[0].Certified || !strings.Contains(c2.Text, "from 1.36× to 1.88×") {
		t.Errorf("%+v", c2)
	}
	d.Rounds[2].Certificate = nil
	if html, _ := pages(t, d); !strings.Contains(html, "Time, at the quick level") || !strings.Contains(html, "Against compile, the fastest baseline, with") || strings.Contains(html, "<h2>Certificate</h2>") {
		t.Error("nothing of it is certified now")
	}
}
