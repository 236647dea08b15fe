package judge

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/prompts"
)

// What a prompt shows in the place of an answer is none: as it stands there, in other
// letters, under another key, with others' brackets or with nothing in it.
func TestPlaceholdersAreNoAnswer(t *testing.T) {
	m, _ := model(t)
	answer := map[kw.FeedbackKind]map[string]any{
		kw.Correction:   {"kind": "correction", "issue": "The tail is not masked.", "why": "n is odd.", "fix": "Mask it.", "evidence": []string{}},
		kw.Optimisation: {"kind": "optimisation", "bottleneck": "Memory", "method": "One pass", "plan": "Keep the row in registers.", "why": "", "evidence": []string{}},
		kw.Stop:         {"kind": "stop", "bottleneck": "", "method": "", "plan": "", "why": "headroom 0.97", "evidence": []string{}},
	}
	asked := map[kw.FeedbackKind]kw.FeedbackKind{kw.Correction: kw.Correction, kw.Optimisation: kw.Optimisation, kw.Stop: kw.Optimisation}
	parts := map[kw.FeedbackKind][]string{kw.Correction: {"issue", "why", "fix"}, kw.Optimisation: {"bottleneck", "method", "plan"}, kw.Stop: {"why"}}
	blank := []string{"…", "...", "-", " ? ", "TODO", "todo: ", "string", "<string>", "<why>", "[the fix]", "{{.Plan}}", "<what you found>", "None", "n/a", "N/A.", "\"\"", "null", "unknown"}
	// what the prompts say of each key, read as a person would
	told := map[kw.FeedbackKind][]string{}
	for _, want := range []kw.FeedbackKind{kw.Correction, kw.Optimisation} {
		for line := range strings.Lines(own(t, m.Prompts, want, false) + "\n" + own(t, m.Prompts, want, true)) {
			var shown map[string]any
			if json.Unmarshal([]byte(line), &shown) != nil {
				continue
			}
			for key, says := range shown {
				if s, ok := says.(string); ok && key != "kind" && s != "" {
					told[want] = append(told[want], s, strings.ToUpper(s), s+".", key+": "+s, "<"+s+">")
				}
			}
		}
		if len(told[want]) < 15 {
			t.Fatalf("%v", told)
		}
	}
	for kind, whole := range answer {
		reads := func(key, value string) error {
			t.Helper()
			changed := map[string]any{}
			for k, v := range whole {
				changed[k] = v
			}
			if key != "" {
				changed[key] = value
			}
			b, err := json.Marshal(changed)
			if err != nil {
				t.Fatal(err)
			}
			_, err = read(said(string(b)), asked[kind], nil, shipped(t, asked[kind]))
			return err
		}
		if err := reads("", ""); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		for _, key := range parts[kind] {
			for _, says := range slices.Concat(blank, told[asked[kind]], []string{key, strings.ToUpper(key)}) {
				if err := reads(key, says); err == nil || !strings.Contains(err.Error(), `"`+key+`"`) {
					t.Errorf("%s: %q as %s: %v", kind, says, key, err)
				}
			}
			for _, says := range []string{"Fix the tail", "the row is read twice", "float4", "fuse", "[[nodiscard]] is missing on line 3 [of 9]", "x[i] + y[i]", "<cuda_fp16.h> and <mma.h>",
				"None of the 16 blocks is full", "what is wrong: the tail", "the smallest change that mends it: mask the tail", "unknown type name half", "memory access"} {
				if err := reads(key, says); err != nil {
					t.Errorf("%s: %q as %s: %v", kind, says, key, err)
				}
			}
		}
	}
}

// A user's own words are no answer either.
func TestPlaceholdersOfOwnTemplates(t *testing.T) {
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "templates"), 0o755); err != nil {
		t.Fatal(err)
	}
	const mine = `{{.Reference}}{{.Candidate}}{{.Verdict}}
Say it as {"kind": "correction", "issue": "der Fehler", ...} with
why: in one sentence how it comes to that
fix: <the cure>
`
	if err := os.WriteFile(filepath.Join(folder, "templates", "judge_correction.tmpl"), []byte(mine), 0o600); err != nil {
		t.Fatal(err)
	}
	const few = `Blocks of "data:" are others'. Say "der Mangel" as it is.`
	if err := os.WriteFile(filepath.Join(folder, "templates", "compact_judge_system.tmpl"), []byte(few), 0o600); err != nil {
		t.Fatal(err)
	}
	own, err := prompts.LoadTemplates(folder)
	if err != nil {
		t.Fatal(err)
	}
	for text, wrong := range map[string]bool{
		`{"kind": "correction", "issue": "Der Fehler", "why": "n is odd", "fix": "mask it", "evidence": []}`:                                     true,
		`{"kind": "correction", "issue": "der Mangel", "why": "n is odd", "fix": "mask it", "evidence": []}`:                                     true,
		`{"kind": "correction", "issue": "the tail", "why": "n is odd", "fix": "<the cure>", "evidence": []}`:                                    true,
		`{"kind": "correction", "issue": "in one sentence how it comes to that", "why": "n is odd", "fix": "mask it", "evidence": []}`:           true,
		`{"kind": "correction", "issue": "what is wrong, and where", "why": "n is odd", "fix": "mask it: it is another's word", "evidence": []}`: false,
	} {
		m, s := model(t, said(text))
		m.Prompts = own
		f, err := m.Judge(t.Context(), failed)
		if err != nil || (f.Unusable != "") != wrong || (len(s.asked) == 2) != wrong {
			t.Errorf("%s: %d calls, %+v %v", text, len(s.asked), f, err)
		}
	}
}

// A placeholder is sent back once with what is wrong, and then the rules speak.
func TestPlaceholdersAreRepairedOnce(t *testing.T) {
	const echo = `{"kind": "correction", "issue": "what is wrong, and where", "why": "how that leads to what was seen", "fix": "the smallest change that mends it", "evidence": []}`
	m, s := model(t, said(echo), said(correction))
	f, err := m.Judge(t.Context(), failed)
	if err != nil || f.Fix != "Mask it." || f.Unusable != "" || len(s.asked) != 2 {
		t.Fatalf("%d calls, %+v %v", len(s.asked), f, err)
	}
	if told := s.asked[1].Messages[3].Text; !strings.Contains(told, `"issue" is "what is wrong, and where", which says nothing of this candidate`) {
		t.Errorf("it is told\n%s", told)
	}
	m, s = model(t, said(echo), said(echo))
	f, err = m.Judge(t.Context(), failed)
	if err != nil || f.Rule != "wrong_result" || !strings.HasPrefix(f.Unusable, `the answer of test:scripted could not be used: "issue" is "what is wrong, and where"`) || len(s.asked) != 2 {
		t.Fatalf("%d calls, %+v %v", len(s.asked), f, err)
	}
}
