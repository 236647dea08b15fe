package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/store"
)

// Commands are killed at random moments, alone, with all their processes at once,
// or one of these processes, and given again until they are at their end: nothing
// that was recorded is lost, changes or is done again, and nothing is left behind.
// TestKills does the same to the daemon.
func TestKillsOfCommands(t *testing.T) {
	if !soak.Turn(t, 5, 6) {
		t.Skip("it has its turn every sixth day, as TestKills and TestTrainServe have")
	}
	t.Parallel()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	kills := 1
	if soak.Long() {
		kills = fromEnv(t, "KERNELWRIGHT_SOAK_KILLS", 200)
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("KERNELWRIGHT_TEST_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("KERNELWRIGHT_TEST_SEED=%d", seed)
	b := newBatch(t, python, seed)
	victims := []*victim{
		{batch: b, verb: "run", prepare: prepareRun, examine: examineRun},
		{batch: b, verb: "eval", prepare: prepareEval, examine: examineEval},
		{batch: b, verb: "audit", prepare: prepareAudit, examine: examineAudit},
	}
	b.random.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	if !soak.Long() {
		victims = victims[:1] // another one each day
	}
	killed := map[string]int{}
	for done := 0; done < kills; {
		for _, v := range victims {
			if done < kills {
				done += v.suffer(kills-done, killed)
			}
		}
	}
	for _, v := range victims {
		v.finish()
	}
	t.Logf("%d kills: %v", kills, killed)
	if left := b.processes(); len(left) > 0 {
		t.Errorf("processes left behind: %v", left)
	}
	s := b.open()
	defer s.Close()
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// victim is a command, with what it is given.
type victim struct {
	*batch
	verb    string
	prepare func(v *victim) []string // the next thing to do, as arguments
	examine func(v *victim, p *working, harmed bool)

	number int      // of what it does
	args   []string // empty: the last one is done
	harmed bool     // one of its processes was killed, and what it says may be of that
	audit  map[string]string
}

func (v *victim) path(name string) string { return filepath.Join(v.dir, name) }

// suffer starts the command and kills it, or processes of it, up to so many times.
// It returns how often.
func (v *victim) suffer(most int, killed map[string]int) (done int) {
	p := v.start()
	for done < most {
		if p.endsWithin(time.Duration(v.random.Float64() * float64(4*time.Second))) {
			v.ended(p)
			return done
		}
		tree := p.tree()
		if len(tree) == 0 {
			continue // it has just ended
		}
		done++
		switch what := v.random.IntN(3); {
		case what == 0 && len(tree) > 1:
			one := tree[1+v.random.IntN(len(tree)-1)]
			killed[v.verb+": a "+one.what(tree)]++
			below := one.below()
			one.kill()
			v.vanish("a process of "+v.verb, below)
			v.harmed = true
			continue
		case what == 1:
			killed[v.verb+": all at once"]++
			for _, each := range slices.Backward(tree) {
				each.kill()
			}
		default:
			killed[v.verb+": alone"]++
			tree[0].kill()
		}
		v.vanish(v.verb, tree)
		<-p.wait
		v.examine(v, p, true)
		return done
	}
	<-p.wait
	v.ended(p)
	return done
}

// start gives the command, or goes on with it.
func (v *victim) start() *working {
	if v.args == nil {
		v.number++
		v.args, v.harmed = v.prepare(v), false
	}
	return v.startCommand(v.args...)
}

// ended looks at what a command says that came to its end.
func (v *victim) ended(p *working) {
	v.t.Helper()
	v.examine(v, p, v.harmed)
	if code := p.code(); code != ExitOK && code != ExitNotFound && !v.harmed { // nothing faster is an end, too
		v.t.Fatalf("%s ended with %d and nobody had killed anything: %s", v.verb, code, p.out)
	}
	if !v.harmed {
		v.args = nil
	}
	v.harmed = false // the next one meets no harm of now
}

// finish gives the command until it is done.
func (v *victim) finish() {
	v.t.Helper()
	for v.args != nil {
		p := v.start()
		<-p.wait
		v.ended(p)
	}
}

func (v *victim) write(name, text string) string {
	v.t.Helper()
	path := v.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		v.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		v.t.Fatal(err)
	}
	return path
}

// expression is a task like no other one.
func (v *victim) expression() string { return fmt.Sprintf("torch.tanh(x) * %d.5 + x", v.number) }

// nativeCandidate is right for it.
func (v *victim) nativeCandidate() string {
	return fmt.Sprintf(`import torch
from kernelwright import native

lib = native(language="cpp", source=r"""
#include <cmath>
extern "C" void f(const float* x, float* y, long long n) { for (long long i = 0; i < n; i++) y[i] = std::tanh(x[i]) * %d.5f + x[i]; }
""")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.f(x, y, x.numel())
        return y
`, v.number)
}

func prepareRun(v *victim) []string {
	path := v.write(fmt.Sprintf("run%d.py", v.number), fmt.Sprintf(reference, v.expression()))
	return []string{"run", path, "--rounds", "2", "--out", v.path("out"), "--headroom", "1", "--patience", "100", "--wall-time", "24h"}
}

// examineRun holds the rounds to those that were there before.
func examineRun(v *victim, p *working, harmed bool) {
	v.t.Helper()
	v.check(p)
	if v.harmed || p.code() < 0 || harmed {
		return
	}
	s := v.open()
	defer s.Close()
	var ours []kernelwright.Run
	for _, r := range v.runs(s) {
		if filepath.Base(r.Path) == fmt.Sprintf("run%d.py", v.number) {
			ours = append(ours, r)
		}
	}
	if len(ours) != 1 || ours[0].Status != kernelwright.RunDone {
		v.t.Errorf("run %d has %d runs, want one that is done: %+v", v.number, len(ours), ours)
	}
	if _, err := os.Stat(filepath.Join(v.path("out"), fmt.Sprintf("run%d.report.html", v.number))); err != nil {
		v.t.Error(err)
	}
}

func prepareEval(v *victim) []string {
	task := v.write("eval/task.py", fmt.Sprintf(reference, v.expression()))
	return []string{"eval", task, v.write(fmt.Sprintf("eval/new%d.py", v.number), v.nativeCandidate()), "--json"}
}

// examineEval reads the verdict.
func examineEval(v *victim, p *working, harmed bool) {
	v.t.Helper()
	if harmed || p.code() < 0 {
		return
	}
	var verdict kernelwright.Verdict
	if err := json.Unmarshal(p.out.Bytes(), &verdict); err != nil || verdict.Status != kernelwright.Correct {
		v.t.Errorf("%v: %s", err, p.out)
	}
}

// auditedPairs are what an audit has to evaluate, with the status that each deserves.
var auditedPairs = map[string]kernelwright.Status{
	"native.py": kernelwright.Correct, "rewrite.py": kernelwright.Correct, "wrong.py": kernelwright.Wrong, "broken.py": kernelwright.BuildFailed,
}

func prepareAudit(v *victim) []string {
	set := fmt.Sprintf("audit%d/", v.number)
	v.write(set+"reference.py", fmt.Sprintf(reference, v.expression()))
	v.write(set+"native.py", v.nativeCandidate())
	module := "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return %s\n"
	v.write(set+"rewrite.py", fmt.Sprintf(module, v.expression()))
	v.write(set+"wrong.py", fmt.Sprintf(module, "x"))
	v.write(set+"broken.py", "class ModelNew(\n")
	v.audit = map[string]string{}
	return []string{"audit", v.path(set), "--out", v.path("page"), "--json"}
}

// examineAudit holds verdicts to those that were there before.
func examineAudit(v *victim, p *working, harmed bool) {
	v.t.Helper()
	s := v.open()
	defer s.Close()
	audits, _, err := s.Audits(v.t.Context(), store.Page{Limit: 1})
	if err != nil {
		v.t.Fatal(err)
	}
	if len(audits) == 0 || audits[0].Path != strings.TrimSuffix(v.path(fmt.Sprintf("audit%d", v.number)), "/") {
		return // it has not begun
	}
	now := map[string]string{}
	err = s.AuditPairs(v.t.Context(), audits[0].ID, func(pair kernelwright.AuditPair) error {
		name := filepath.Base(pair.Candidate)
		text, err := json.Marshal(pair)
		now[name] = string(text)
		_, before := v.audit[name]
		if want := auditedPairs[name]; !before && pair.Verdict.Status != want && (!harmed || pair.Verdict.Status != kernelwright.Crashed) {
			v.t.Errorf("%s is %s, want %s: %s", name, pair.Verdict.Status, want, pair.Verdict.Reason)
		}
		return err
	})
	if err != nil {
		v.t.Fatal(err)
	}
	for name, before := range v.audit {
		if now[name] != before {
			v.t.Errorf("%s was recorded, and has changed:\n%s\n%s", name, before, now[name])
		}
	}
	v.audit = now
	if !harmed && p.code() == ExitOK && (len(now) != len(auditedPairs) || audits[0].FinishedMS == 0) {
		v.t.Errorf("the audit has %d of %d pairs at its end", len(now), len(auditedPairs))
	}
}
