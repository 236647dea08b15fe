package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// How much there is of all else: what years of work come to.
const (
	manyEnded     = 2000 // runs that came to nothing before their first round
	manyQueued    = 1000
	manySpoken    = 300 // runs whose conversations are kept
	manyEpisodes  = 600
	manyBenches   = 60
	benchMembers  = 50
	manyAudits    = 20
	auditPairs    = 300
	manyNights    = 365
	manyPolicies  = 60
	manyPromotion = 40
)

var stageNames = []string{"synthesise", "baseline", "rft", "value", "ppo", "gate"}

// others is how much there is of what is not of a run.
type others struct {
	benches, audits, pipelines, policies, episodes int64
	spoken                                         []int64
}

// readOthers reads it off the history.
func readOthers(ctx context.Context, db *store.Store) (o others, err error) {
	last := store.Page{Limit: 1}
	benches, err1 := db.Benches(ctx, last)
	audits, _, err2 := db.Audits(ctx, last)
	pipelines, err3 := db.Pipelines(ctx, last)
	policies, err4 := db.Policies(ctx, last)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return o, err
	}
	if len(benches)*len(audits)*len(pipelines)*len(policies) == 0 {
		return o, errors.New("there is nothing but runs")
	}
	o = others{benches: benches[0].ID, audits: audits[0].ID, pipelines: pipelines[0].ID, policies: policies[0].Version, episodes: manyEpisodes}
	_, err = db.Select(ctx, `SELECT DISTINCT run FROM calls ORDER BY run`, store.Bounds{Rows: manySpoken}, func([]string) error { return nil }, func(v []any) error {
		run, _ := v[0].(int64)
		o.spoken = append(o.spoken, run)
		return nil
	})
	return o, err
}

// filled reports whether the history has all that is drawn: training is recorded last.
func filled(ctx context.Context, db *store.Store, s settings) (bool, error) {
	runs, err := db.Runs(ctx, store.RunFilter{Limit: 1})
	if err != nil || len(runs) == 0 || runs[0].ID < int64(s.rounds/s.perRun) {
		return false, err
	}
	promotions, err := db.Promotions(ctx)
	return len(promotions) >= manyPromotion, err
}

// fillOthers records all else, once, through the store's own methods.
func fillOthers(ctx context.Context, db *store.Store, s settings) error {
	if known, err := db.Nights(ctx, store.Page{Limit: 1}); err != nil || len(known) > 0 {
		return err
	}
	o, all, err := patterns()
	if err != nil {
		return err
	}
	w, err := newWriter(ctx, db.Path())
	if err != nil {
		return err
	}
	defer func() { _ = w.db.Close() }() // what was committed stays
	rng := rand.New(rand.NewPCG(s.seed, 4))
	runs := int64(s.rounds / s.perRun)
	for _, part := range []struct {
		name string
		fill func() error
	}{
		{"runs that came to nothing", func() error { return fillRuns(ctx, db, s) }},
		{"conversations", func() error { return fillTalks(ctx, db, rng, runs) }},
		{"episodes", func() error { return fillEpisodes(ctx, db, o) }},
		{"benches", func() error { return fillBenches(ctx, db, rng, runs, w) }},
		{"audits", func() error { return fillAudits(ctx, db, rng, all) }},
		{"training", func() error { return fillTraining(ctx, db) }},
	} {
		fmt.Fprintln(os.Stderr, part.name)
		if err := part.fill(); err != nil {
			return fmt.Errorf("record %s: %w", part.name, err)
		}
	}
	return nil
}

func fillRuns(ctx context.Context, db *store.Store, s settings) error {
	for i := range int64(min(manyEnded, s.rounds/10)) {
		status, reason := kernelwright.RunInvalid, fmt.Sprintf("line %d of the reference: there is no class Model", i)
		if i%2 == 1 {
			status, reason = kernelwright.RunDeclined, "there is nothing to gain: it is at 97 % of its roofline"
		}
		_, err := db.CreateRun(ctx, kernelwright.Run{TaskName: fmt.Sprintf("task_%05d", i), Path: fmt.Sprintf("/home/someone/kernels/task_%05d.py", i), Device: "cpu", Strategy: "rounds", Coder: coders[0], Judge: "rules", Status: status, Reason: reason, CreatedMS: createdMS(int64(s.rounds/s.perRun) + i)})
		if err != nil {
			return err
		}
	}
	for i := range min(manyQueued, s.rounds/100) {
		if _, err := db.Enqueue(ctx, kernelwright.Run{TaskName: fmt.Sprintf("waits_%04d", i), Path: fmt.Sprintf("/home/someone/kernels/waits_%04d.py", i), Device: "cpu", Strategy: "rounds", Coder: coders[0], Judge: "rules"}, i%5); err != nil {
			return err
		}
	}
	return nil
}

// callOf is a call of a model, with what it was told and what it said.
func callOf(run int64, round int, agent string) llm.Record {
	said := fmt.Sprintf("Round %d of run %d: the kernel reads its rows twice. I keep them in registers, unroll by four and write each row once.\n```python\nclass ModelNew: pass  # %d\n```", round, run, run*100+int64(round))
	return llm.Record{
		Key: llm.Key{Run: run, Round: round, Agent: agent}, Model: coders[1], BeganMS: createdMS(run), TookMS: 1500,
		Request: llm.Request{Messages: []llm.Message{{Role: "system", Text: "You write fast kernels that are right."}, {Role: "user", Text: fmt.Sprintf("The task of run %d, and what was measured in round %d.", run, round)}}},
		Reply:   llm.Reply{Text: said, Stop: "end", Usage: llm.Usage{In: 3000, Out: 900}},
	}
}

func fillTalks(ctx context.Context, db *store.Store, rng *rand.Rand, runs int64) error {
	for range min(manySpoken, runs) {
		run := 1 + rng.Int64N(runs)
		for round := range 10 {
			for _, agent := range []string{"coder", "judge"} {
				if err := db.Append(ctx, callOf(run, round, agent)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func fillEpisodes(ctx context.Context, db *store.Store, o original) error {
	for i := range manyEpisodes {
		run, err := db.CreateRun(ctx, kernelwright.Run{Task: o.Task.Fingerprint, TaskName: "episode", Strategy: "rounds", Coder: "policy:current", Status: kernelwright.RunRunning}, store.WithEpisode(store.Episode{Policy: "v1", Rule: "last"}))
		if err != nil {
			return err
		}
		var samples []store.Sample
		for round := range 3 {
			if err := db.Append(ctx, callOf(run.ID, round, "coder")); err != nil {
				return err
			}
			samples = append(samples, store.Sample{Index: round, Round: round, Context: "append", Finish: "stop", Policy: "v1"})
		}
		reward := []int{-1, 1, 2, 3}[i%4]
		run.Status = kernelwright.RunDone
		if _, err := db.EndEpisode(ctx, store.Episode{Run: run.ID, Status: store.EpisodeDone, Reward: &reward}, run, samples); err != nil {
			return err
		}
	}
	return nil
}

func fillBenches(ctx context.Context, db *store.Store, rng *rand.Rand, runs int64, w *writer) error {
	for i := range manyBenches {
		b := kernelwright.Bench{Seeds: []int64{0}, Configurations: []kernelwright.Configuration{{Strategy: "rounds", Coder: "builtin", Judge: "rules", Rounds: 10 + i}}, Command: []string{"kernelwright", "bench", "kernels"}}
		for j := range benchMembers {
			b.References = append(b.References, kernelwright.Reference{Name: fmt.Sprintf("reference_%d", j)})
		}
		b, err := db.CreateBench(ctx, b)
		if err != nil {
			return err
		}
		for j := range benchMembers {
			if _, err := w.db.ExecContext(ctx, `INSERT INTO bench_runs (bench, reference, configuration, seed, run) VALUES (?, ?, 0, 0, ?)`, b.ID, j, 1+rng.Int64N(runs)); err != nil {
				return err
			}
		}
		if err := db.FinishBench(ctx, b.ID); err != nil {
			return err
		}
		ended, err := loadBench(ctx, db, b.ID)
		if err == nil {
			err = report.KeepBench(ctx, db, measured, ended, report.Figures(ended))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func fillAudits(ctx context.Context, db *store.Store, rng *rand.Rand, all []pattern) error {
	for i := range manyAudits {
		a, err := db.CreateAudit(ctx, kernelwright.Audit{Path: fmt.Sprintf("/home/someone/set_%d", i), Level: kernelwright.Quick, DeviceName: "a GPU", Command: []string{"kernelwright", "audit"}})
		if err != nil {
			return err
		}
		for j := range auditPairs {
			v, err := all[j%len(all)].drawVerdict(rng)
			if err != nil {
				return err
			}
			p := kernelwright.AuditPair{Reference: fmt.Sprintf("r%03d.py", j), Candidate: fmt.Sprintf("c%03d.py", j), Index: j, Claim: &kernelwright.Claim{Speedup: 3, Against: "eager"}, Verdict: v}
			if err := db.KeepAudited(ctx, a.ID, 1, p); err != nil {
				return err
			}
		}
		if err := db.FinishAudit(ctx, a.ID, 1); err != nil {
			return err
		}
	}
	return nil
}

func fillTraining(ctx context.Context, db *store.Store) error {
	for i := range int64(manyNights) {
		begun := createdMS(i * 274)
		n, err := db.BeginNight(ctx, store.Night{DueMS: begun, UntilMS: begun + 28_800_000, BegunMS: begun, Owner: "1@2@3"})
		if err != nil {
			return err
		}
		p, err := db.BeginPipeline(ctx, fmt.Appendf(nil, `{"small":true,"seed":%d}`, i))
		if err != nil {
			return err
		}
		for _, name := range stageNames {
			st, err := db.BeginStage(ctx, p.ID, name, []byte(`{}`), []byte(`{"epochs":1}`))
			if err != nil {
				return err
			}
			st.Status, st.EndedMS, st.Seconds, st.Verdicts, st.Outputs = store.StageDone, begun+3_600_000, 3600, 200, fmt.Appendf(nil, `{"kept": %d}`, i)
			if err := db.SaveStage(ctx, st); err != nil {
				return err
			}
		}
		n.SeenMS, n.EndedMS, n.Stop, n.WorkedMS, n.GPUMS, n.Pipeline = begun+20_000_000, begun+20_000_000, "done", 20_000_000, 18_000_000, p.ID
		if err := db.SaveNight(ctx, n); err != nil {
			return err
		}
	}
	for i := range int64(manyPolicies) {
		base := "a-base-model"
		if i > 0 {
			base = fmt.Sprint("v", i)
		}
		_, err := db.SavePolicy(ctx, store.Policy{Digest: kernelwright.HashText(fmt.Sprint("policy ", i)), Base: base, License: "apache-2.0", Pipeline: i + 1, Stage: "ppo", Bytes: 5e8, Files: []byte("[]")}, func(int64) error { return nil })
		if err != nil {
			return err
		}
	}
	for i := range int64(manyPromotion) {
		if err := db.Promote(ctx, func([]store.Promotion) (store.Promotion, bool, error) {
			return store.Promotion{Policy: i + 1, Reason: "it is better"}, true, nil
		}); err != nil {
			return err
		}
	}
	return nil
}
