package hwfeedback

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kernelwright/kernelwright"
)

// twins are texts that mean the same to whoever does not read them: each is a
// program of its own, which can.
func twins() map[string]string {
	const text = "good\nclass ModelNew:\n  \"1\"\n"
	return map[string]string{
		"itself":            text,
		"a docstring":       strings.Replace(text, `"1"`, `"16"`, 1),
		"other quotes":      strings.Replace(text, `"1"`, `'1'`, 1),
		"no docstring":      strings.Replace(text, `"1"`, "pass", 1),
		"a comment":         text + "# x\n",
		"another comment":   text + "# y\n",
		"a comment before":  "# x\n" + text,
		"a line between":    strings.Replace(text, "\n", "\n\n", 1),
		"a space at an end": strings.Replace(text, "\n", " \n", 1),
		"a space within":    strings.Replace(text, "class ", "class  ", 1),
		"a tab":             strings.Replace(text, "  ", "\t", 1),
		"no end of line":    strings.TrimSuffix(text, "\n"),
		"windows":           strings.ReplaceAll(text, "\n", "\r\n"),
		"old mac":           strings.ReplaceAll(text, "\n", "\r"),
		"a byte order mark": "\ufeff" + text,
		"a form feed":       "\f" + text,
		"an encoding":       "# -*- coding: utf-8 -*-\n" + text,
		"a schedule":        kernelwright.Schedule{Plan: "p"}.Comment() + "\n" + text,
		"composed":          text + "# \u00e9\n",
		"decomposed":        text + "# e\u0301\n",
		"what ends a key":   text + "# |\n",
	}
}

func sorted(names iter.Seq[string], backwards bool) []string {
	all := slices.Sorted(names)
	if backwards {
		slices.Reverse(all)
	}
	return all
}

// Whichever is evaluated first, none gets another's verdict, and each gets its own
// again: in this process, after a restart, and by no other level or device.
func TestEachTextHasAVerdictOfItsOwn(t *testing.T) {
	for _, backwards := range []bool{false, true} {
		b := newBench(t)
		texts := twins()
		names := sorted(maps.Keys(texts), backwards)
		for i, name := range names {
			if v := b.evaluate(texts[name], kernelwright.Quick); v.Cached || v.Candidate != kernelwright.HashText(texts[name]) {
				t.Errorf("%s: it got another's verdict: %+v", name, v.Candidate)
			}
			if n := b.count("evaluate"); n != i+1 {
				t.Fatalf("%s: %d evaluations", name, n)
			}
		}
		b.Close()
		again := openBench(t, b.options.DataDir, b.cache)
		for _, name := range names {
			if v := again.evaluate(texts[name], kernelwright.Quick); !v.Cached || v.Candidate != kernelwright.HashText(texts[name]) {
				t.Errorf("%s: it was evaluated again: %+v", name, v.Candidate)
			}
		}
		if again.evaluate(texts["itself"], kernelwright.Certify).Cached {
			t.Error("a quick verdict passed for a certificate")
		}
		again.device.Key = "another"
		if again.evaluate(texts["itself"], kernelwright.Quick).Cached {
			t.Error("another device's verdict was returned")
		}
	}
}

// A reference can read its own text, too: what is remembered of one, and of
// candidates for it, is no other's, although all have one fingerprint.
func TestEachReferenceHasWhatIsRememberedOfIt(t *testing.T) {
	for _, backwards := range []bool{false, true} {
		b := newBench(t)
		texts := twins()
		evaluate := func(reference string) kernelwright.Verdict {
			t.Helper()
			task, err := b.Inspect(t.Context(), "relu", reference)
			if err != nil || task.Source != reference {
				t.Fatalf("%+v, %v", task, err)
			}
			task.Fingerprint = "the same"
			v, err := b.Evaluate(t.Context(), task, kernelwright.Candidate{Source: "good"}, kernelwright.Quick)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		names := sorted(maps.Keys(texts), backwards)
		for i, name := range names {
			if v := evaluate(texts[name]); v.Cached || v.Evidence[0] != "{'calibration': None, 'baselines': None}" {
				t.Errorf("%s: cached %v, known %s", name, v.Cached, v.Evidence[0])
			}
			if n := b.count("inspect"); n != i+1 {
				t.Fatalf("%s: %d inspections", name, n)
			}
		}
		for _, name := range names {
			if !evaluate(texts[name]).Cached {
				t.Errorf("%s: it was evaluated again", name)
			}
		}
		if n := b.count("inspect"); n != len(names) {
			t.Errorf("%d inspections of %d texts", n, len(names))
		}
	}
}

// A batch is no other way to an answer than one candidate is.
func TestTwinsInABatch(t *testing.T) {
	for _, backwards := range []bool{false, true} {
		b := newBench(t)
		texts := twins()
		var cands []kernelwright.Candidate
		for range 2 {
			for _, name := range sorted(maps.Keys(texts), backwards) {
				cands = append(cands, kernelwright.Candidate{Source: texts[name]})
			}
		}
		err := b.EvaluateBatch(t.Context(), aTask, cands, kernelwright.Quick, func(i int, v kernelwright.Verdict) error {
			if v.Cached != (i >= len(texts)) || v.Candidate != kernelwright.HashText(cands[i].Source) {
				t.Errorf("candidate %d: cached %v, %s", i, v.Cached, v.Candidate)
			}
			return nil
		})
		if n := b.count("evaluate"); err != nil || n != len(texts) {
			t.Errorf("%d evaluations of %d texts: %v", n, len(texts), err)
		}
	}
}

// Two texts are one candidate exactly where they have the same bytes.
func TestSameBytesAreOneCandidate(t *testing.T) {
	b := newBench(t)
	text := rapid.Custom(func(rt *rapid.T) string {
		pieces := []string{"good", " ", "\n", "\r\n", "\r", "\t", "#", "\"\"\"d\"\"\"", "\ufeff", "|", "é"}
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 1, 4).Draw(rt, "pieces"), "")
	})
	known := map[string]bool{}
	rapid.Check(t, func(rt *rapid.T) {
		source := text.Draw(rt, "text")
		v, err := b.Evaluate(t.Context(), aTask, kernelwright.Candidate{Source: source}, kernelwright.Quick)
		if err != nil || v.Cached != known[source] || v.Candidate != kernelwright.HashText(source) {
			rt.Fatalf("%q: cached %v, evaluated before %v, %v", source, v.Cached, known[source], err)
		}
		known[source] = true
	})
}

// What is no UTF-8 would be evaluated as another text than itself.
func TestWhatIsNoTextIsNotEvaluated(t *testing.T) {
	b := newBench(t)
	for _, source := range []string{"good \xff", "good \xfe", "good \xed\xa0\x80"} {
		v := b.evaluate(source, kernelwright.Quick)
		if v.Status != kernelwright.Rejected || v.Reason == "" || v.Hint == "" || v.Candidate != kernelwright.HashText(source) || v.Cached {
			t.Errorf("%q: %+v", source, v)
		}
		if _, err := b.Inspect(t.Context(), "relu", source); err == nil {
			t.Errorf("%q is a reference", source)
		}
	}
	if n := b.count("evaluate") + b.count("inspect"); n != 0 {
		t.Errorf("the referee was asked %d times", n)
	}
}

// Every version is part of what must be the same, whatever its name.
func TestOtherVersionsAreAsked(t *testing.T) {
	b := newBench(t)
	b.evaluate("good", kernelwright.Quick)
	for name := range b.Versions() {
		if name == "kernelwright" || name == "harness" { // the program's own: see versionsKey
			continue
		}
		before := b.versions[name]
		b.versions[name] = before + ".1"
		if b.evaluate("good", kernelwright.Quick).Cached {
			t.Errorf("the verdict of another %s was returned", name)
		}
		b.versions[name] = before
	}
	b.harness.hash = "another"
	if b.evaluate("good", kernelwright.Quick).Cached {
		t.Error("the verdict of another harness was returned")
	}
	if key := b.versionsKey(); !strings.Contains(key, fmt.Sprintf("kernelwright=%s", kernelwright.Version)) {
		t.Errorf("the key is %q", key)
	}
}
