package teach

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/coder"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/episodes"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

// childEnv has the test's program make a corpus, for a test that kills it.
const childEnv = "KERNELWRIGHT_TEST_TEACH"

func TestMain(m *testing.M) {
	if out := os.Getenv(childEnv); out != "" {
		child(out)
		return
	}
	goleak.VerifyTestMain(m)
}

// graphs are captured ones, by the names of their modules.
var graphs = sync.OnceValue(func() map[string]json.RawMessage {
	text, err := os.ReadFile("../../coder/testdata/graphs.jsonl")
	if err != nil {
		panic(err)
	}
	all := map[string]json.RawMessage{}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var f struct {
			Name  string
			Graph json.RawMessage
		}
		if err := d.Decode(&f); err != nil {
			panic(err)
		}
		all[f.Name] = f.Graph
	}
	return all
})

// machine inspects references that are the names of graphs. By what it is told some
// candidates are wrong: it evaluates nothing by itself.
type machine struct {
	mu    sync.Mutex
	wrong func(source string) bool
	asked map[string]int // by candidate
	stop  func()         // called before a verdict, may be nil
}

func (*machine) Device() kw.Device {
	return kw.Device{Kind: kw.CPUDevice, Key: "a test's", Name: "a test's CPU", Specs: kw.Specs{Cores: 2, Threads: 2, VectorBits: 512}}
}

func (m *machine) Inspect(_ context.Context, name, source string) (kw.Task, error) {
	switch source {
	case "no task":
		return kw.Task{}, &kw.InvalidTaskError{Reason: "it defines no Model"}
	case "no machine":
		return kw.Task{}, &kw.InfrastructureError{Op: "inspect", Err: errors.New("out of order")}
	}
	return kw.Task{Name: name, Source: source, Fingerprint: kw.HashText(source), Graph: graphs()[source]}, nil
}

func (m *machine) EvaluateBatch(ctx context.Context, _ kw.Task, cs []kw.Candidate, l kw.Level, yield func(int, kw.Verdict) error) error {
	for i, c := range cs {
		if m.stop != nil {
			m.stop()
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		v := kw.Verdict{Level: l, Status: kw.Correct, CostS: map[string]float64{"build": 1, "verify": 2, "total": 3}}
		m.mu.Lock()
		if m.asked != nil {
			m.asked[c.Source]++
		}
		if m.wrong != nil && m.wrong(c.Source) {
			v.Status = kw.Wrong
		}
		m.mu.Unlock()
		if err := yield(i, v); err != nil {
			return err
		}
	}
	return nil
}

func options(t testing.TB, out string, machines ...Hardware) Options {
	t.Helper()
	templates, err := prompts.LoadTemplates("")
	if err != nil {
		t.Fatal(err)
	}
	return Options{Hardware: machines, Out: out, Episodes: episodes.Options{Judge: judge.Rules{}, Prompts: templates, Settings: forge.DefaultSettings()}}
}

func tasksOf(names ...string) (all []tasks.Task) {
	for _, name := range names {
		all = append(all, tasks.Task{Source: name, Fingerprint: kw.HashText(name), Split: store.TrainSplit})
	}
	return all
}

var some = []string{"softmax", "unary_mish", "mse"}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// A corpus has several right answers to each task, to what its episode asks first; the
// same seed makes the same file, on however many devices, and another one another.
func TestPairs(t *testing.T) {
	dir := t.TempDir()
	wrong := func(source string) bool { return strings.Contains(source, "exp") && kw.HashText(source)[0] < '8' }
	s := Settings{Seed: 3, Each: 3, Request: episodes.Request{Rounds: 1}}
	all := tasksOf(append(some, "no task", "softmax", "not captured")...)
	var told []Progress
	o := options(t, filepath.Join(dir, "a.jsonl"), &machine{wrong: wrong})
	o.Progress = func(p Progress) { told = append(told, p) }
	counts, err := Pairs(t.Context(), s, all, o)
	if err != nil {
		t.Fatal(err)
	}
	pairs := must[[]Pair](t)(Read(o.Out))
	if counts.Tasks != 6 || counts.Taught != 3 || counts.Pairs != len(pairs) || len(told) != 5 || told[4].Pairs != len(pairs) {
		t.Errorf("%+v, %d pairs, told %+v", counts, len(pairs), told)
	}
	for why, n := range map[string]int{leftInvalid: 1, leftTwice: 1, leftDeclined: 1} {
		if counts.Left[why] != n {
			t.Errorf("%s: %v", why, counts.Left)
		}
	}
	if counts.Verdicts != counts.Pairs+counts.Left[leftVerdict+"wrong"] || counts.Seconds["verify: build"] != float64(counts.Verdicts) {
		t.Errorf("%+v", counts)
	}
	seen := map[string]bool{}
	at := 0
	for _, p := range pairs {
		for all[at].Fingerprint != p.Task { // in the order of the tasks
			at++
		}
		m := o.Hardware[0]
		task := must[kw.Task](t)(m.Inspect(t.Context(), "", all[at].Source))
		r := s.Request
		r.Reference = task.Source
		if want := must[[]episodes.Message](t)(episodes.First(t.Context(), o.Episodes, r, task, m.Device())); !reflect.DeepEqual(p.Prompt, want) {
			t.Errorf("the prompt of %s is another", task.Source)
		}
		c := must[kw.Candidate](t)(coder.Read(p.Answer, kw.CPP, ""))
		if kw.HashText(c.Source) != p.Candidate || seen[p.Task+p.Candidate] || wrong(c.Source) || len(p.Schedule) == 0 {
			t.Errorf("a pair of %s: %+v", task.Source, p)
		}
		seen[p.Task+p.Candidate] = true
	}

	text := must[[]byte](t)(os.ReadFile(o.Out))
	o.Out, o.Hardware, o.Progress = filepath.Join(dir, "b.jsonl"), []Hardware{&machine{wrong: wrong}, &machine{wrong: wrong}}, nil
	if again, err := Pairs(t.Context(), s, all, o); err != nil || again.Pairs != counts.Pairs || !reflect.DeepEqual(again.Left, counts.Left) {
		t.Errorf("%v: %+v", err, again)
	}
	if !bytes.Equal(text, must[[]byte](t)(os.ReadFile(o.Out))) {
		t.Error("two devices make another corpus than one")
	}
	s.Seed, o.Out = 4, filepath.Join(dir, "c.jsonl")
	if _, err := Pairs(t.Context(), s, all, o); err != nil || bytes.Equal(text, must[[]byte](t)(os.ReadFile(o.Out))) {
		t.Errorf("%v: another seed makes the same corpus", err)
	}
	longest := 0
	for _, p := range pairs {
		longest = max(longest, len(p.Answer))
	}
	s.MaxBytes, s.Each, o.Out = longest-1, 2, filepath.Join(dir, "d.jsonl")
	short, err := Pairs(t.Context(), s, all, o)
	if err != nil || short.Pairs == 0 {
		t.Errorf("%v: %+v", err, short)
	}
	for _, p := range must[[]Pair](t)(Read(o.Out)) {
		if len(p.Answer) > s.MaxBytes {
			t.Errorf("an answer has %d bytes", len(p.Answer))
		}
	}
}

// What is refused is said, and the record of another corpus stays as it is.
func TestPairsOfBadInput(t *testing.T) {
	s := Settings{Each: 2, Request: episodes.Request{Rounds: 1}}
	o := options(t, filepath.Join(t.TempDir(), "pairs.jsonl"), &machine{})
	held := tasksOf("softmax")
	held[0].Split = store.KindsSplit
	if _, err := Pairs(t.Context(), s, held, o); !errors.As(err, new(*HeldOutError)) {
		t.Errorf("held out: %v", err)
	}
	if _, err := os.Stat(o.Out + RecordSuffix); err == nil {
		t.Error("it was begun all the same")
	}
	var infra *kw.InfrastructureError
	if _, err := Pairs(t.Context(), s, tasksOf("softmax", "no machine"), o); !errors.As(err, &infra) {
		t.Errorf("a broken machine: %v", err)
	}
	if _, err := Pairs(t.Context(), s, tasksOf("softmax"), o); err != nil {
		t.Error(err)
	}
	before := must[[]byte](t)(os.ReadFile(o.Out + RecordSuffix))
	other := s
	other.Seed = 9
	if _, err := Pairs(t.Context(), other, tasksOf("softmax"), o); err == nil || !strings.HasSuffix(err.Error(), "was begun with another seed") {
		t.Errorf("another seed: %v", err)
	}
	other = s
	other.Request.Strategy = forge.ReactStrategy
	if _, err := Pairs(t.Context(), other, tasksOf("softmax"), o); !errors.As(err, new(*OtherError)) {
		t.Errorf("another request: %v", err)
	}
	if !bytes.Equal(before, must[[]byte](t)(os.ReadFile(o.Out+RecordSuffix))) {
		t.Error("the record has changed")
	}
	if r, err := openRecord(o.Out+RecordSuffix, head{s, "a test's", kw.Version}); err != nil {
		t.Error(err)
	} else {
		if _, err := Pairs(t.Context(), s, tasksOf("softmax"), o); !errors.As(err, new(*BusyError)) {
			t.Errorf("two at once: %v", err)
		}
		r.close()
	}
	for what, spoil := range map[string]func([]byte) []byte{
		"no record":    func([]byte) []byte { return []byte("a shopping list\n") },
		"a hole in it": func(b []byte) []byte { return bytes.Replace(b, []byte(`{"task"`), []byte(`{'task'`), 1) },
	} {
		if err := os.WriteFile(o.Out+RecordSuffix, spoil(slices.Clone(before)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Pairs(t.Context(), s, tasksOf("softmax"), o); err == nil || !strings.Contains(err.Error(), o.Out+RecordSuffix) {
			t.Errorf("%s: %v", what, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	o.Out = filepath.Join(t.TempDir(), "stopped.jsonl")
	o.Hardware = []Hardware{&machine{stop: cancel}, &machine{}}
	if _, err := Pairs(ctx, s, tasksOf(some...), o); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}

// Wherever a record breaks off, what is whole is not done again, and the corpus is that
// of a run that was not stopped.
func TestPairsGoOnFromEveryByte(t *testing.T) {
	s := Settings{Each: 2, Request: episodes.Request{Rounds: 1}}
	all := tasksOf("softmax", "mse")
	o := options(t, filepath.Join(t.TempDir(), "pairs.jsonl"), &machine{})
	must[Counts](t)(Pairs(t.Context(), s, all, o))
	whole, text := must[[]byte](t)(os.ReadFile(o.Out+RecordSuffix)), must[[]byte](t)(os.ReadFile(o.Out))
	ends := map[int]int{} // tasks that are done, by the end of their line
	for i, b := range whole {
		if b == '\n' {
			ends[i+1] = len(ends)
		}
	}
	for cut := 0; cut <= len(whole); cut++ {
		if cut%5003 != 0 && ends[cut] == 0 && ends[cut-1] == 0 && ends[cut+1] == 0 {
			continue
		}
		done := 0
		for end, n := range ends {
			if end <= cut {
				done = max(done, n)
			}
		}
		if err := os.WriteFile(o.Out+RecordSuffix, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		m := &machine{asked: map[string]int{}}
		o.Hardware = []Hardware{m}
		must[Counts](t)(Pairs(t.Context(), s, all, o))
		if !bytes.Equal(text, must[[]byte](t)(os.ReadFile(o.Out))) {
			t.Fatalf("cut at %d: another corpus", cut)
		}
		if len(m.asked) != 2*(len(all)-done) {
			t.Fatalf("cut at %d, %d tasks done: %d candidates were verified", cut, done, len(m.asked))
		}
	}
}

// child makes a corpus, and says each candidate before it is verified.
func child(out string) {
	m := func() *machine { return &machine{stop: func() { fmt.Println("verdict") }} }
	templates, err := prompts.LoadTemplates("")
	if err == nil {
		_, err = Pairs(context.Background(), Settings{Each: 2, Request: episodes.Request{Rounds: 1}}, tasksOf(some...), Options{
			Hardware: []Hardware{m(), m()}, Out: out, Episodes: episodes.Options{Judge: judge.Rules{}, Prompts: templates, Settings: forge.DefaultSettings()},
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A corpus that is killed again and again ends as one that was not: no pair is lost, and
// none is there twice.
func TestPairsSurviveKills(t *testing.T) {
	dir := t.TempDir()
	corpus := func(out string, verdicts int) (killed bool) {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), childEnv+"="+out)
		said := must[interface{ Read([]byte) (int, error) }](t)(c.StdoutPipe())
		var stderr bytes.Buffer
		c.Stderr = &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(said)
		for n := 0; lines.Scan(); n++ {
			if n == verdicts {
				if err := c.Process.Signal(syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			}
		}
		if err := c.Wait(); err != nil && c.ProcessState.ExitCode() != -1 {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		return c.ProcessState.ExitCode() == -1
	}
	whole, broken := filepath.Join(dir, "whole.jsonl"), filepath.Join(dir, "broken.jsonl")
	corpus(whole, -1)
	kills := 0
	for verdicts := 1; corpus(broken, verdicts); verdicts = verdicts%3 + 2 {
		if kills++; kills == 100 {
			t.Fatal("it never ends")
		}
	}
	if kills < 2 {
		t.Errorf("%d kills", kills)
	}
	if a, b := must[[]byte](t)(os.ReadFile(whole)), must[[]byte](t)(os.ReadFile(broken)); !bytes.Equal(a, b) {
		t.Errorf("after %d kills the corpus is another", kills)
	}
}

// A copy is found under other names, be it of the corpus or of a point; what is written
// otherwise is none, and what cannot be known is not claimed.
func TestNovelty(t *testing.T) {
	m := &machine{}
	small := m.Device() // has few points
	small.Specs = kw.Specs{Cores: 1, Threads: 1, VectorBits: 256}
	task := must[kw.Task](t)(m.Inspect(t.Context(), "softmax", "softmax"))
	other := must[kw.Task](t)(m.Inspect(t.Context(), "mse", "mse"))
	points, _, err := coder.Builtin{}.Enumerate(t.Context(), kw.CoderInput{Task: task, Device: small}, 3)
	if err != nil {
		t.Fatal(err)
	}
	renamed := strings.NewReplacer("inputs_0", "given", "kernel0", "all", "out0", "y", `"inputs_0:`, `"inputs_0:`).Replace(points[2].Source)
	got, err := Measure(t.Context(), []Candidate{
		{Task: task, Source: points[1].Source, Tokens: 100}, {Task: task, Source: renamed, Tokens: 300},
		{Task: task, Source: plain}, {Task: other, Source: "x = 1\n"}, {Task: other, Source: "z = 1 # the same\n"},
	}, []string{strings.ReplaceAll(plain, "chain", "fused")}, small, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if got.Candidates != 5 || got.Different != 4 || got.Taught != 1 || got.Space != 2 || got.Copies != 3 || *got.Share != 0.6 || got.Whole != 5 {
		t.Errorf("%+v, share %v", got, *got.Share)
	}
	if *got.Tokens != 200 || *got.CharactersPerToken != float64(len(points[1].Source)+len(renamed))/400 {
		t.Errorf("%v %v", *got.Tokens, *got.CharactersPerToken)
	}
	if got, err = Measure(t.Context(), []Candidate{{Task: task, Source: "y"}}, nil, small, 5, 1); err != nil || got.Whole != 0 || got.Copies != 0 || got.Tokens != nil {
		t.Errorf("%v: %+v", err, got)
	}
	if got, err = Measure(t.Context(), nil, nil, small, 0, 1); err != nil || got.Share != nil {
		t.Errorf("%v: %+v", err, got)
	}
}
