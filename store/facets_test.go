package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// varied records runs that differ in all that they are chosen by.
func varied(t *testing.T, s *Store, rng *rand.Rand, n int) []kw.Run {
	t.Helper()
	ctx := t.Context()
	one := func(all ...string) string { return all[rng.IntN(len(all))] }
	for i := range 6 {
		var operators []string
		for range 1 + rng.IntN(3) {
			operators = append(operators, one("aten.Softmax", "aten.log_softmax", "aten.relu", "my op"))
		}
		ok(t, s.SaveTask(ctx, kw.Task{Fingerprint: fmt.Sprint("f", i), Name: fmt.Sprint("task ", i%4), Source: fmt.Sprint("class Model: # ", i), Operators: operators}))
	}
	for range n {
		task := rng.IntN(7) // the last one is recorded by nobody
		run := must(s.CreateRun(ctx, kw.Run{
			Task: fmt.Sprint("f", task), TaskName: fmt.Sprint("task ", task%4), Path: fmt.Sprint("/x/", task%3), DeviceKey: one("cpu", "gpu"), Strategy: one("rounds", "beam"), Coder: one("builtin", "p:m"),
			CreatedMS: int64(rng.IntN(9)) * dayMS / 2,
		}))(t)
		for j := range rng.IntN(4) {
			r := round(run.ID, j, kw.Status(one("correct", "wrong")), 1+rng.Float64())
			r.Candidate.Language = kw.Language(one("cpp", "cuda"))
			r.Verdict.Speedup = &kw.Speedup{Value: 2, Low: 0.5, High: 3, Against: "eager"}
			ok(t, s.AppendRound(ctx, r))
			if r.Verdict.Status.OK() && rng.IntN(2) == 0 {
				v := kw.Verdict{Status: kw.Status(one("certified", "wrong")), CandidateMS: 1}
				if low := rng.Float64() * 2; rng.IntN(4) > 0 {
					v.Speedup = &kw.Speedup{Value: low * 1.1, Low: low, High: low * (1 + rng.Float64()), Against: "eager"}
				}
				if v.Status == kw.Certified {
					v.Exported = fmt.Sprint("# ", run.ID, j)
					v.ExportedSHA256 = kw.HashText(v.Exported)
				}
				ok(t, s.SetCertificate(ctx, run.ID, j, v))
			}
		}
		run.Status = kw.RunStatus(one("running", "done", "done", "failed"))
		ok(t, s.UpdateRun(ctx, run))
	}
	all := must(s.Runs(ctx, RunFilter{Limit: n + 1}))(t)
	if len(all) != n {
		t.Fatalf("%d runs of %d", len(all), n)
	}
	return all
}

// meets says of a run what the record would, by what it has of it.
func (f RunFilter) meets(r kw.Run, operators []string) bool {
	var v kw.Verdict
	var language kw.Language
	result := kw.ResultNotCertified
	if r.Best != nil {
		v, language = r.Best.Verdict, r.Best.Candidate.Language
		if c := r.Best.Certificate; c != nil && c.Status == kw.Certified {
			v, result = *c, kw.ResultOf(c.Speedup)
		}
	}
	is := func(want, have string) bool { return want == "" || want == have }
	return is(f.Task, r.Task) && is(f.Name, r.TaskName) && is(f.Path, r.Path) && is(f.DeviceKey, r.DeviceKey) && is(f.Strategy, r.Strategy) && is(f.Coder, r.Coder) && is(string(f.Status), string(r.Status)) &&
		is(string(f.Language), string(language)) && (f.Result == "" || r.Status == kw.RunDone && f.Result == result) &&
		(f.LeastSpeedup == 0 || v.Speedup != nil && v.Speedup.Value >= f.LeastSpeedup) &&
		(f.SinceMS == 0 || r.CreatedMS >= f.SinceMS) && (f.UntilMS == 0 || r.CreatedMS < f.UntilMS) &&
		(f.Operator == "" || slices.ContainsFunc(operators, func(o string) bool { return strings.Contains(strings.ToLower(o), strings.ToLower(f.Operator)) }))
}

// Whatever runs are chosen by, those are found that meet it, page by page, in both orders
// and however many there are; and the record says of itself that it is whole.
func TestRunsAreChosenByWhatTheyAre(t *testing.T) {
	s := openTest(t)
	rng := rand.New(rand.NewPCG(1, 2))
	all := varied(t, s, rng, 120)
	operators := map[string][]string{}
	for _, task := range must(s.Tasks(t.Context(), "", "", 10))(t) {
		operators[task.Fingerprint] = task.Operators
	}
	maybe := func(values ...string) string {
		if rng.IntN(3) > 0 {
			return ""
		}
		return values[rng.IntN(len(values))]
	}
	found := 0
	for range 300 {
		f := RunFilter{
			Task: maybe("f1", "f2", "f6"), Name: maybe("task 1", "task 2"), Path: maybe("/x/1"), DeviceKey: maybe("cpu", "gpu", "none"), Strategy: maybe("rounds", "beam"), Coder: maybe("builtin", "p:m"),
			Status: kw.RunStatus(maybe("running", "done", "failed")), Language: kw.Language(maybe("cpp", "cuda")), Operator: maybe("softmax", "ATEN.R", "op", "none"),
			Result: kw.Result(maybe("faster", "no_difference", "undecided", "not_timed", "nothing_faster", "not_certified")), Oldest: rng.IntN(2) == 0,
		}
		if rng.IntN(3) == 0 {
			f.LeastSpeedup = rng.Float64() * 3
		}
		if rng.IntN(3) == 0 {
			f.SinceMS = rng.Int64N(4 * dayMS)
		}
		if rng.IntN(3) == 0 {
			f.UntilMS = rng.Int64N(5 * dayMS)
		}
		var want, have []int64
		for _, r := range all {
			if f.meets(r, operators[r.Task]) {
				want = append(want, r.ID)
			}
		}
		if f.Oldest {
			slices.Reverse(want)
		}
		if n := must(s.CountRuns(t.Context(), f))(t); n != int64(len(want)) {
			t.Errorf("%+v: %d runs, not %d", f, n, len(want))
		}
		for f.Limit = 3; ; {
			page := must(s.Runs(t.Context(), f))(t)
			for _, r := range page {
				have = append(have, r.ID)
			}
			if len(page) < f.Limit {
				break
			}
			f.Before = page[len(page)-1].ID
		}
		if !slices.Equal(have, want) {
			t.Errorf("%+v: %v, not %v", f, have, want)
		}
		found += len(want)
	}
	if found < 300 {
		t.Errorf("only %d runs were to be found", found)
	}
	kernels := 0
	for _, r := range all {
		for _, round := range must(s.Rounds(t.Context(), r.ID))(t) {
			if c := round.Certificate; c != nil && c.Status == kw.Certified {
				kernels++
			}
		}
	}
	if c := must(s.Counts(t.Context()))(t); c.Kernels != int64(kernels) || c.Runs["done"]+c.Runs["running"]+c.Runs["failed"] != 120 {
		t.Errorf("%+v, not %d kernels", c, kernels)
	}
	// A task whose operators were read anew.
	ok(t, s.SaveTask(t.Context(), kw.Task{Fingerprint: "f6", Name: "task 2", Source: "class Model: # 6", Operators: []string{"aten.only"}}))
	if n := must(s.CountRuns(t.Context(), RunFilter{Operator: "only"}))(t); n == 0 || n != must(s.CountRuns(t.Context(), RunFilter{Task: "f6"}))(t) {
		t.Errorf("%d runs are of it", n)
	}
	path := s.Path()
	ok(t, s.Close())
	if e := examine(t, path); !e.Sound() {
		t.Errorf("%+v", e.Faults)
	}
}

// Days that are over are summed: what is asked for is the same as when every charge was
// read, also of a charge that is booked late, or of a day that comes before.
func TestSumsOfDaysAreThoseOfTheirCharges(t *testing.T) {
	s := openTest(t)
	ctx, rng := t.Context(), rand.New(rand.NewPCG(3, 4))
	var runs []int64
	for i := range 4 {
		runs = append(runs, must(s.CreateRun(ctx, kw.Run{TaskName: fmt.Sprint("task ", i%3), Status: kw.RunRunning}))(t).ID)
	}
	runs = append(runs, 0)
	var ids []int64
	charge := func() llm.Charge {
		c := llm.Charge{Key: llm.Key{Run: runs[rng.IntN(len(runs))], Agent: "coder"}, Model: fmt.Sprint("p:", rng.IntN(2)), Usage: llm.Usage{In: rng.Int64N(9), Out: rng.Int64N(9)}, EndedMS: rng.Int64N(30 * dayMS), Took: time.Second}
		if rng.IntN(3) > 0 {
			usd := rng.Float64()
			c.USD = &usd
		}
		if rng.IntN(4) == 0 {
			c.Failed = llm.Unfinished
		}
		return c
	}
	same := func() {
		t.Helper()
		for _, since := range []int64{0, 1, dayMS, dayMS + 7, 3*dayMS - 1, 8 * dayMS, 8*dayMS + 1, 21 * dayMS, 40 * dayMS} {
			var want, have kw.Spend
			spent := must(s.Spent(ctx, llm.Scope{Since: time.UnixMilli(max(since, 1))}))(t)
			want = spent.Spend
			for _, day := range must(s.Spending(ctx, max(since, 1)))(t) {
				have = have.Add(day.Spend)
				if day.DayMS%dayMS != 0 || day.DayMS+dayMS <= since {
					t.Errorf("since %d: day %d", since, day.DayMS)
				}
			}
			if d := want.USD - have.USD; d*d > 1e-18 {
				t.Errorf("since %d: %v dollars, not %v", since, have.USD, want.USD)
			}
			if d := want.USDAtWorst - have.USDAtWorst; d*d > 1e-18 {
				t.Errorf("since %d: %v dollars at worst, not %v", since, have.USDAtWorst, want.USDAtWorst)
			}
			want.USD, want.USDAtWorst = have.USD, have.USDAtWorst
			if want != have {
				t.Errorf("since %d: %+v, not %+v", since, have, want)
			}
			calls := map[string]int64{}
			for _, name := range must(scanNames(s.read.Query(`SELECT task_name FROM charges JOIN runs ON runs.id = run WHERE ended >= ?`, since/dayMS*dayMS)))(t) {
				calls[name]++
			}
			for _, task := range must(s.SpendingByTask(ctx, since, 10))(t) {
				if calls[task.TaskName] -= task.Calls; calls[task.TaskName] != 0 {
					t.Errorf("since %d: %d calls too few for %s", since, calls[task.TaskName], task.TaskName)
				}
				delete(calls, task.TaskName)
				var runs int64
				ok(t, s.read.QueryRow(`SELECT count(DISTINCT run) FROM charges JOIN runs ON runs.id = run WHERE ended >= ? AND task_name = ?`, since/dayMS*dayMS, task.TaskName).Scan(&runs))
				if task.Runs != runs {
					t.Errorf("since %d: %d runs of %s, not %d", since, task.Runs, task.TaskName, runs)
				}
			}
			if len(calls) > 0 {
				t.Errorf("since %d: nothing of %v", since, calls)
			}
		}
	}
	for i := range 40 {
		ids = append(ids, must(s.Book(ctx, charge()))(t))
		if i%3 == 0 {
			i := rng.IntN(len(ids))
			c := charge()
			ok(t, s.Rebook(ctx, ids[i], c))
		}
		if i%10 == 9 {
			same()
		}
	}
	renamed := must(s.Run(ctx, runs[0]))(t)
	renamed.TaskName = "another"
	ok(t, s.UpdateRun(ctx, renamed))
	same()
	if n := must(scanNames(s.read.Query(`SELECT DISTINCT day FROM charge_days`)))(t); len(n) < 4 {
		t.Errorf("%d days were summed", len(n))
	}
	path := s.Path()
	ok(t, s.Close())
	if e := examine(t, path); !e.Sound() {
		t.Errorf("%+v", e.Faults)
	}
}
