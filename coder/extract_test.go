package coder

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/llm"
)

// answer is a file of testdata/replies: lines "key: value", a line "---", and the
// reply to the last byte.
//
//	want: candidate, or the flaw
//	language: what was asked for; nothing where it is left open
//	pad: a number, and what stands so often in the place of PAD
//	stop: why the reply ended; "end" where nothing is said
//	is: the candidate's language
//	contains, lacks: text of the candidate, in which \n and \r are spelled out
//	says: text of the reason
//	note: the candidate's note
type answer struct {
	name  string
	head  map[string]string
	reply llm.Reply
}

func readAnswers(t testing.TB) []answer {
	t.Helper()
	files, err := filepath.Glob("testdata/replies/*.txt")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d replies: %v", len(files), err)
	}
	var all []answer
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		head, text, ok := bytes.Cut(b, []byte("---\n"))
		if !ok {
			t.Fatalf("%s has no line of three dashes", f)
		}
		a := answer{name: strings.TrimSuffix(filepath.Base(f), ".txt"), head: map[string]string{}}
		for line := range strings.Lines(string(head)) {
			key, value, ok := strings.Cut(strings.TrimRight(line, "\n"), ": ")
			if !ok {
				t.Fatalf("%s: %q", f, line)
			}
			a.head[key] = strings.NewReplacer(`\n`, "\n", `\r`, "\r", `\ufeff`, "\ufeff").Replace(value)
		}
		a.reply = llm.Reply{Text: padded(string(text), a.head["pad"]), Stop: llm.StopEnd}
		if s := a.head["stop"]; s != "" {
			a.reply.Stop = llm.Stop(s)
		}
		all = append(all, a)
	}
	return all
}

// padded puts what pad names in the place of PAD.
func padded(text, pad string) string {
	times, what, ok := strings.Cut(pad, " ")
	n, err := strconv.Atoi(times)
	if !ok || err != nil {
		return text
	}
	return strings.Replace(text, "PAD", strings.Repeat(what, n), 1)
}

// What models send, and what becomes of it.
func TestReplies(t *testing.T) {
	found := map[string]extracted{}
	for _, a := range readAnswers(t) {
		t.Run(a.name, func(t *testing.T) {
			got, bad := extract(a.reply, kernelwright.Language(a.head["language"]))
			if bad != nil {
				if a.head["want"] != string(bad.flaw) {
					t.Fatalf("%s (%s), want %s", bad.flaw, bad.reason, a.head["want"])
				}
				if !strings.Contains(bad.reason, a.head["says"]) || strings.ContainsAny(bad.reason, "\n") || len(bad.reason) > 200 || bad.hint == "" {
					t.Errorf("reason %q, hint %q", bad.reason, bad.hint)
				}
				return
			}
			if a.head["want"] != "candidate" {
				t.Fatalf("a candidate, want %s:\n%s", a.head["want"], got.source)
			}
			found[a.name] = got
			if want := a.head["contains"]; !strings.Contains(got.source, want) {
				t.Errorf("the candidate lacks %q:\n%s", want, got.source)
			}
			if not := a.head["lacks"]; not != "" && strings.Contains(got.source, not) {
				t.Errorf("the candidate has %q:\n%s", not, got.source)
			}
			want := a.head["language"]
			if is := a.head["is"]; is != "" {
				want = is
			}
			if string(got.language) != want {
				t.Errorf("the candidate is %q, want %q", got.language, want)
			}
			if n := a.head["note"]; n != "" && n != got.note {
				t.Errorf("note %q", got.note)
			}
		})
	}
	asTheBuilderSeesThem(t, found)
}

// asTheBuilderSeesThem asks Python whether what was found are files that define
// ModelNew, in the language that was found.
func asTheBuilderSeesThem(t *testing.T, found map[string]extracted) {
	t.Helper()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Log("KERNELWRIGHT_TEST_PYTHON names no Python: it is not asked what candidates are")
		return
	}
	type one struct{ Source, Language string }
	sources := map[string]one{}
	for name, e := range found {
		sources[name] = one{e.source, string(languageOf(e.source))}
	}
	in, err := json.Marshal(sources)
	if err != nil {
		t.Fatal(err)
	}
	const ask = `
import json, sys
sys.path.insert(0, "../hwfeedback/harness")
from kwharness.build import source
for name, it in json.load(sys.stdin).items():
    seen = source.parse(it["Source"], "candidate")
    wrong = [p for p in seen.problems if "not valid Python" in p or "defines no class" in p]
    if wrong or (it["Language"] or "cpp") != seen.language:
        print(name, it["Language"], seen)
`
	cmd := exec.Command(python, "-c", ask)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

// The work on a reply is in proportion to its length, whatever it holds. Soaking,
// replies are four times as long.
func TestHostileRepliesAreReadInTime(t *testing.T) {
	runtime.LockOSThread() // its processor time is asked for: no other program takes of that
	defer runtime.UnlockOSThread()
	share, most := 128, 4*time.Second // under the race detector it takes a tenth of a second; what is quadratic, many
	if soak.Long() {
		share, most = 32, 10*time.Second
	}
	for _, part := range []string{"```\n", "```python\n", "~~~\n```py\n", "\"\"\"\n```\n", "'''\n```python\n'''\n", "class ModelNew(nn.Module):\n", "(", "[{", "\"",
		"<think>", "</think>", "<think></think>", "{\"a\":", "\\n", "&lt;", "native(", "native(source=x)\n", "load_inline(cuda_sources=[a])\n", "> ", "1. ```x\n",
		"def f(", "import torch\n", "@@ -1 +1 @@\n", "# ... rest\n", "\x1b[", "<|", "a.b:c!", "\n", " \t"} {
		text := strings.Repeat(part, MaxReplyBytes/share/len(part))
		for _, reply := range []string{text, "```python\nclass ModelNew(nn.Module):\n" + text[:len(text)/2]} {
			began := threadTime(t)
			extract(llm.Reply{Text: reply, Stop: llm.StopEnd}, kernelwright.CUDA)
			if took := threadTime(t) - began; took > most {
				t.Errorf("%.20q: %v", part, took)
			}
		}
	}
}

// threadTime is the processor time that this thread has had.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
