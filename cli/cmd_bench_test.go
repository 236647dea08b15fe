package cli

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// The matrix is every combination, in the order of the flags, and all else is as
// in the settings.
func TestConfigurationsOfABench(t *testing.T) {
	said := func(c benchCmd, env ...string) (out []string) {
		t.Helper()
		a := &app{env: append(env, "HOME="+t.TempDir()), flags: map[string]string{"rounds.patience": "7"}, flagNames: map[string]string{"rounds.patience": "--patience"}}
		configs, err := c.configurations(a)
		if err != nil {
			t.Fatal(err)
		}
		for _, conf := range configs {
			r := (&room{}).under(conf)
			k := configuration(conf, r.strategy())
			search := k.Strategy == forge.ExhaustiveStrategy // which has no patience and no profile
			if conf.Rounds.Patience != 7 || strings.Contains(k.Settings, `"patience":7`) == search {
				t.Errorf("a flag was lost: %+v", k)
			}
			taught := ""
			if k.Lessons {
				taught = " taught"
			}
			if k.Metrics != "" {
				taught += " " + k.Metrics
			}
			if !search && r.profile() != conf.Rounds.Metrics {
				t.Errorf("its profile is %q", r.profile())
			}
			out = append(out, fmt.Sprintf("%s %s %s/%s %s %d%s", k.Strategy, k.Coder, k.Judge, k.Mode, k.Language, k.Rounds, taught))
		}
		return out
	}
	for _, c := range []struct {
		flags matrixFlags
		env   []string
		want  []string
	}{
		{matrixFlags{}, []string{"KERNELWRIGHT_ROUNDS_MAX=4"}, []string{"rounds builtin rules/both auto 4 taught"}},
		{matrixFlags{Rounds: "4"}, []string{"KERNELWRIGHT_JUDGE_LESSONS=false"}, []string{"rounds builtin rules/both auto 4"}},
		{matrixFlags{Rounds: "4,5", Lessons: "off, on"}, nil, []string{
			"rounds builtin rules/both auto 4", "rounds builtin rules/both auto 4 taught", "rounds builtin rules/both auto 5", "rounds builtin rules/both auto 5 taught",
		}},
		{
			matrixFlags{Judge: "rules,none, correction", Rounds: "1,5", Coder: "builtin"}, nil,
			[]string{
				"rounds builtin rules/both auto 1 taught", "rounds builtin rules/both auto 5 taught", "rounds builtin none/none auto 1 taught", "rounds builtin none/none auto 5 taught",
				"rounds builtin rules/correction auto 1 taught", "rounds builtin rules/correction auto 5 taught",
			},
		},
		{matrixFlags{Rounds: "1", Metrics: "selected,full"}, nil, []string{"rounds builtin rules/both auto 1 taught", "rounds builtin rules/both auto 1 taught full"}},
		{matrixFlags{Rounds: "2"}, []string{"KERNELWRIGHT_ROUNDS_JUDGE=none"}, []string{"rounds builtin none/none auto 2 taught"}},
		{
			matrixFlags{Coder: "openai:x", Judge: "self,score,openai:y", Strategy: "react", Rounds: "3"}, nil,
			[]string{"react openai:x self/self auto 3 taught", "react openai:x score/score auto 3", "react openai:x openai:y/both auto 3 taught"},
		},
		{matrixFlags{Strategy: "exhaustive"}, []string{"KERNELWRIGHT_ROUNDS_STRATEGY=react", "KERNELWRIGHT_CODER_NAME=openai:x"}, []string{"exhaustive builtin none/none auto 100"}},
		{matrixFlags{Strategy: "exhaustive, rounds", Coder: "builtin,openai:x", Rounds: "2"}, nil, []string{
			"rounds builtin rules/both auto 2 taught", "rounds openai:x rules/both auto 2 taught", "exhaustive builtin none/none auto 100",
		}},
	} {
		if got := said(benchCmd{matrixFlags: c.flags}, c.env...); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.flags, got, c.want)
		}
	}
}

func TestReferencesOfABench(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"KernelBench/level1/10_Softmax.py", "KernelBench/level1/2_ReLU.py", "KernelBench/level1/2_ReLU.best.py", "KernelBench/level2/1_Conv_Softmax.py",
		"KernelBench/level1/__init__.py", "KernelBench/level3/7_LogSoftmax.py", "list.txt",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("KernelBench/level2/1_Conv_Softmax.py\n\n# but\nKernelBench/level1/2_ReLU.py # and\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	below := filepath.Join(dir, "KernelBench")
	for want, c := range map[string]struct {
		flags chosenFlags
		named string
	}{
		"2_ReLU 10_Softmax 1_Conv_Softmax 7_LogSoftmax": {named: dir},
		"2_ReLU 10_Softmax":                             {chosenFlags{levelFlag: levelFlag{"1"}}, dir},
		"1_Conv_Softmax 2_ReLU 10_Softmax":              {chosenFlags{levelFlag: levelFlag{"2,1"}}, below},
		"10_Softmax":                                    {chosenFlags{Only: []string{"softmax*"}}, dir},
		"10_Softmax 1_Conv_Softmax 7_LogSoftmax":        {chosenFlags{Only: []string{"*SOFTMAX.py"}}, dir},
		"2_ReLU 7_LogSoftmax":                           {chosenFlags{Only: []string{"7_*", "relu"}}, dir},
		"1_Conv_Softmax 2_ReLU":                         {chosenFlags{List: filepath.Join(dir, "list.txt")}, dir},
		"2_ReLU":                                        {chosenFlags{levelFlag: levelFlag{"1"}, Limit: 1}, dir},
	} {
		paths, err := c.flags.chosen([]string{c.named})
		if err != nil {
			t.Errorf("%+v: %v", c.flags, err)
		}
		var names []string
		for _, path := range paths {
			names = append(names, strings.TrimSuffix(filepath.Base(path), ".py"))
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%+v: %s, want %s", c.flags, got, want)
		}
	}
}

// A bench that is killed in a round, and interrupted in another, goes on by the
// same command: what was recorded stays as it was, nothing is done twice, and a
// run that had ended is left alone. TestKills kills single runs every day, and
// package daemon stops a bench wherever it can be stopped.
func TestAKilledBenchGoesOn(t *testing.T) {
	t.Parallel()
	soak.Only(t)
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	refs := t.TempDir()
	for name, forward := range map[string]string{"a_matmul.py": "x @ x.t()", "b_tanh.py": "torch.tanh(x) * 3"} {
		if err := os.WriteFile(filepath.Join(refs, name), []byte(strings.ReplaceAll(reference, "%s", forward)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := runner{t: t, python: python, data: newData(t)}
	start := func() *process {
		c := r.command("bench", refs, "--rounds", "3", "--headroom", "1", "--patience", "100", "--wall-time", "24h")
		stderr, err := c.StderrPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
		return &process{runner: r, Cmd: c.Cmd, lines: bufio.NewScanner(stderr)}
	}
	told := map[string]bool{}
	tell := func(p *process) {
		t.Helper()
		for _, line := range p.said {
			if round, _, found := strings.Cut(line, " of 3  "); found {
				if told[round] {
					t.Errorf("done again: %s", line)
				}
				told[round] = true
			}
		}
	}

	p := start()
	p.until("bench 1: runs to be made: 2")
	p.until("round 0 of 3")
	p.measuring()
	p.signal(syscall.SIGKILL)
	p.wait(-1)
	tell(p)
	killed := benchRuns(t, r)
	if len(killed) != 2 || killed[0].Run.Status != kernelwright.RunDeclined || killed[1].Run.Status != kernelwright.RunRunning || len(killed[1].Rounds) == 0 {
		t.Fatalf("%+v", killed)
	}

	p = start()
	p.until("b_tanh: going on where it was stopped")
	p.measuring()
	p.signal(syscall.SIGINT)
	p.wait(0, 130)
	p.mustSay("finishing the round")
	tell(p)
	interrupted := benchRuns(t, r)
	same(t, interrupted[1].Rounds[:len(killed[1].Rounds)], killed[1].Rounds)
	// A Judge that stops it early leaves the certification to be interrupted.
	if over := interrupted[1].Run.Status == kernelwright.RunDone; over != (p.ProcessState.ExitCode() == 0) || !over && len(interrupted[1].Rounds) <= len(killed[1].Rounds) {
		t.Errorf("exit code %d, %d rounds, %d before", p.ProcessState.ExitCode(), len(interrupted[1].Rounds), len(killed[1].Rounds))
	}

	p = start()
	p.wait(0)
	tell(p)
	done := benchRuns(t, r)
	same(t, done[1].Rounds[:len(interrupted[1].Rounds)], interrupted[1].Rounds)
	if d := done[1]; d.Run.Status != kernelwright.RunDone || len(d.Rounds) != 3 && d.Run.Stop != kernelwright.StopJudge {
		t.Errorf("it is %s after %d rounds: %s", d.Run.Status, len(d.Rounds), d.Run.Stop)
	}
	if slices.ContainsFunc(p.said, func(line string) bool { return strings.HasPrefix(line, "a_matmul") }) {
		t.Errorf("a run that had ended was touched: %q", p.said)
	}
}

// benchRuns reads what is kept of the one bench; nobody else may write it.
func benchRuns(t *testing.T, r runner) []report.Data {
	t.Helper()
	s, err := store.Open(filepath.Join(r.data, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	members, err := s.Members(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if runs, err := s.Runs(t.Context(), store.RunFilter{}); err != nil || len(runs) != len(members) {
		t.Fatalf("%d runs, of which the bench has %d, %v", len(runs), len(members), err)
	}
	var all []report.Data
	for _, m := range members {
		d, err := daemon.Load(t.Context(), s, m.RunID)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	return all
}
