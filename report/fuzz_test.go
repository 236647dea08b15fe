package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
)

// Whatever a verdict from the record holds, the report of it is one well-formed
// page and clean Markdown, and a certificate holds the file to its hash.
func FuzzReport(f *testing.F) {
	for _, r := range finished().Rounds {
		b, err := json.Marshal(r.Verdict)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, "memory", "fuse")
	}
	hostileJSON, err := json.Marshal(map[string]any{"status": hostile, "reason": hostile, "candidate_ms": -1e308, "baselines": map[string]float64{hostile: 1e-320},
		"timing": map[string]any{"candidate": map[string]any{"median_ms": 1e308}}, "headroom": 1e300, "floor": map[string]any{"ms": -1, "bytes": -5}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(hostileJSON, hostile, hostile)
	f.Fuzz(func(t *testing.T, verdict []byte, bottleneck, plan string) {
		d := finished()
		last := &d.Rounds[len(d.Rounds)-1]
		if json.Unmarshal(verdict, &last.Verdict) != nil {
			return
		}
		last.Certificate = &last.Verdict
		last.Feedback = &kernelwright.Feedback{Kind: kernelwright.Optimisation, Bottleneck: bottleneck, Plan: plan}
		html, markdown := pages(t, d)
		wellFormed(t, html)
		// Markdown has a space of no width in what would become a link.
		for _, page := range []string{html, strings.ReplaceAll(markdown, "\u200b", "")} {
			if !utf8.ValidString(page) || strings.ContainsFunc(page, hidden) {
				t.Fatalf("hidden characters in %q", page)
			}
		}
		if s := Summarise(d); strings.Contains(Speedup(s.Speedup), "\n") {
			t.Fatalf("%+v", s)
		}
		certificate, exported, certified, err := Certify(d, "softmax.best.py")
		if err != nil || !certified {
			return // it does not hold what it was certified as
		}
		var c Certificate
		if err := json.Unmarshal(certificate, &c); err != nil {
			t.Fatal(err)
		}
		if exported == "" || c.SHA256 != kernelwright.HashText(exported) || c.Verdict.ExportedSHA256 != c.SHA256 || c.Verdict.Exported != "" {
			t.Fatalf("%s does not hold %q to its hash", certificate, exported)
		}
	})
}

// Whatever the record of a bench holds, its figures are JSON, and its pages are
// well formed and clean.
func FuzzBench(f *testing.F) {
	measured := timed(2)
	measured.Floor.MS = 1.2
	v, err := json.Marshal(measured)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(v, "softmax", "it is wrong", 1.5)
	f.Add([]byte(`{"status":"correct","candidate_ms":1e-300,"baselines":{"eager":1e300},"speedup":{"value":1e308},"cost_s":{"total":1e308},"cached":true}`), hostile, hostile, -1e308)
	f.Fuzz(func(t *testing.T, verdict []byte, name, reason string, usd float64) {
		d := tried(1, 2)
		certificate := *d.Rounds[1].Certificate
		if json.Unmarshal(verdict, &d.Rounds[0].Verdict) != nil || json.Unmarshal(verdict, &certificate) != nil {
			return
		}
		certificate.Status = kernelwright.Certified
		d.Rounds[1].Certificate = &certificate
		b := aBench()
		b.References[0].Name, b.Configurations[0].Coder, b.Runs[6].Reason = name, name, reason
		b.Runs[0] = ReduceRun(d, b.Runs[0].Member, Spend{Rounds: map[int]float64{0: usd}})
		b.Runs[0].Report = "x/" + name
		f := figures(b, 10)
		if _, err := json.Marshal(map[string]any{"bench": b, "figures": f}); err != nil {
			t.Fatal(err)
		}
		var html, markdown, text bytes.Buffer
		if err := errors.Join(BenchHTML(&html, b, f), BenchMarkdown(&markdown, b, f), BenchTable(&text, b, f)); err != nil {
			t.Fatal(err)
		}
		wellFormed(t, html.String())
		for _, page := range []string{html.String(), text.String(), strings.ReplaceAll(markdown.String(), "\u200b", "")} {
			if !utf8.ValidString(page) || strings.ContainsFunc(page, hidden) || strings.Contains(page, "NaN") && !strings.Contains(name+reason+string(verdict), "NaN") {
				t.Fatalf("hidden characters, or what is no number, in %q", page)
			}
		}
	})
}

// A foreign text on one line is one line, and cleaning it twice is cleaning it
// once.
func FuzzLine(f *testing.F) {
	f.Add(hostile)
	f.Add("a\r\nb\u2028c\u0085d\xff\x00")
	f.Fuzz(func(t *testing.T, s string) {
		clean, line := Clean(s), Line(s)
		if !utf8.ValidString(clean) || strings.ContainsFunc(clean, hidden) || Clean(clean) != clean {
			t.Fatalf("%q became %q", s, clean)
		}
		if strings.ContainsAny(line, "\n\t\r") || strings.ContainsFunc(line, hidden) || Line(line) != line {
			t.Fatalf("%q became %q", s, line)
		}
		if len(clean) > 16*len(s)+16 {
			t.Fatalf("%d bytes became %d", len(s), len(clean))
		}
	})
}
