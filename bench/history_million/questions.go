package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright/store"
)

// question is something to ask; each call draws what it is asked about.
type question struct {
	name string
	path func() string
}

// known is what questions are drawn from.
type known struct {
	rng       *rand.Rand
	runs      int64 // drawn ones; all have perRun rounds
	settings  settings
	devices   []string
	certified []store.Figures // of places all over the history
	others    others
}

// catalogue looks for what there is to ask about.
func catalogue(ctx context.Context, db *store.Store, s settings) (known, error) {
	k := known{rng: rand.New(rand.NewPCG(s.seed, 2)), runs: int64(s.rounds / s.perRun), settings: s}
	devices, err := db.Devices(ctx)
	if err != nil {
		return k, err
	}
	for _, d := range devices {
		k.devices = append(k.devices, d.Key)
	}
	for range 200 {
		found, err := db.Figures(ctx, store.FiguresFilter{Certified: true, BeforeRun: k.run() + 1, Limit: 1})
		if err != nil {
			return k, err
		}
		k.certified = append(k.certified, found...)
	}
	if len(k.certified) == 0 {
		return k, errors.New("there is nothing to measure")
	}
	k.others, err = readOthers(ctx, db)
	return k, err
}

func (k known) run() int64                   { return 1 + k.rng.Int64N(k.runs) }
func (k known) some() store.Figures          { return k.certified[k.rng.IntN(len(k.certified))] }
func (k known) task() string                 { return fmt.Sprintf("task_%05d", popular(k.rng, k.settings.tasks)) }
func (k known) moment() string               { return time.UnixMilli(createdMS(k.run())).UTC().Format(time.RFC3339) }
func (k known) day() string                  { return k.moment()[:len(time.DateOnly)] }
func (k known) number(most int64) int64      { return 1 + k.rng.Int64N(max(most, 1)) }
func one[T any](k known, all ...T) T         { return all[k.rng.IntN(len(all))] }
func (k known) device() string               { return k.devices[rank(k.rng, len(k.devices), 2)] }
func (k known) operator() string             { return operators[k.rng.IntN(len(operators))] }
func (k known) language() string             { return one(k, "cpp", "cuda", "triton") }
func (k known) coder() string                { return one(k, coders...) }
func (k known) speedup() string              { return fmt.Sprintf("%.2f", 0.5+k.rng.ExpFloat64()*2) }
func (k known) limit() string                { return fmt.Sprint(1 + k.rng.IntN(200)) }
func asked(path string, q url.Values) string { return strings.TrimSuffix(path+"?"+q.Encode(), "?") }
func fixed(path string) func() string        { return func() string { return path } }
func with(path string, of func() string) func() string {
	return func() string { return path + url.QueryEscape(of()) }
}

// several draws so many of the parameters, each with a value of its own.
func (k known) several(path string, n int, parameters map[string]func() string, names ...string) func() string {
	return func() string {
		q := url.Values{}
		for _, i := range k.rng.Perm(len(names))[:min(n, len(names))] {
			q.Set(names[i], parameters[names[i]]())
		}
		return asked(path, q)
	}
}

// words are what people look for: frequent, rare, absent, several, and what begins so.
func (k known) words() string {
	return one(k, "softmax", "bits", "unroll", "elements differ", "softmax unroll", "vector*", "cancelled", "not there after", "nosuchword", fmt.Sprint(1000+k.rng.IntN(9000)), fmt.Sprintf("task_%05d", k.rng.IntN(k.settings.tasks)), fmt.Sprint(k.rng.IntN(1<<20)))
}

// questions are every route that reads, and every page.
func (k known) questions() []question { return append(k.routes(), k.pages()...) }

func (k known) routes() []question {
	const v1 = "/api/v1"
	ofRuns := map[string]func() string{
		"name": k.task, "device_key": k.device, "status": func() string {
			return one(k, "queued", "running", "done", "invalid", "declined", "failed", "cancelled")
		}, "strategy": func() string { return one(k, "rounds", "beam", "react", "none") },
		"coder": k.coder, "since": k.moment, "until": k.moment, "sort": func() string { return one(k, "newest", "oldest") }, "limit": k.limit, "task": func() string { return k.some().Task },
		"path": func() string { return "/home/someone/kernels/" + k.task() + ".py" },
	}
	ofRounds := map[string]func() string{
		"name": k.task, "device_key": k.device, "language": k.language, "limit": k.limit, "task": func() string { return k.some().Task },
		"status": func() string {
			return one(k, "rejected", "build_failed", "crashed", "timed_out", "wrong", "cheated", "correct", "certified")
		},
	}
	all := []question{
		{"/healthz", fixed("/healthz")}, {"/metrics", fixed("/metrics")}, {"/openapi.json", fixed("/openapi.json")},
		{"/runs", k.several(v1+"/runs", 2, ofRuns, "sort", "limit")},
		{"/runs?task", with(v1+"/runs?task=", ofRuns["task"])},
		{"/runs?name", with(v1+"/runs?name=", k.task)},
		{"/runs?path", with(v1+"/runs?path=", ofRuns["path"])},
		{"/runs?device_key", with(v1+"/runs?device_key=", k.device)},
		{"/runs?device_key of none", fixed(v1 + "/runs?device_key=none")},
		{"/runs?status", with(v1+"/runs?status=", ofRuns["status"])},
		{"/runs?strategy", with(v1+"/runs?strategy=", ofRuns["strategy"])},
		{"/runs?coder", with(v1+"/runs?coder=", k.coder)},
		{"/runs?coder of none", fixed(v1 + "/runs?coder=none")},
		{"/runs?since", k.several(v1+"/runs", 2, ofRuns, "since", "sort")},
		{"/runs?until", k.several(v1+"/runs", 2, ofRuns, "until", "sort")},
		{"/runs, three filters", k.several(v1+"/runs", 3, ofRuns, "name", "device_key", "status", "strategy", "coder", "since", "until", "sort")},
		{"/runs, five filters", k.several(v1+"/runs", 5, ofRuns, "device_key", "status", "strategy", "coder", "since", "until", "sort")},
		{"/runs, 200 of them", func() string { return asked(v1+"/runs", url.Values{"limit": {"200"}, "device_key": {k.device()}}) }},
		{"/runs/{run}", func() string { return fmt.Sprint(v1+"/runs/", k.run()) }},
		{"/runs/{run}/rounds", func() string { return fmt.Sprintf(v1+"/runs/%d/rounds", k.run()) }},
		{"/runs/{run}/rounds/{round}", func() string { return fmt.Sprintf(v1+"/runs/%d/rounds/%d", k.run(), k.rng.IntN(k.settings.perRun)) }},
		{"/runs/{run}/metrics", func() string { return fmt.Sprintf(v1+"/runs/%d/metrics?limit=%s", k.run(), k.limit()) }},
	}
	for _, list := range []string{"/verdicts", "/kernels"} {
		all = append(all, []question{
			{list, k.several(v1+list, 1, ofRounds, "limit")},
			{list + "?task", with(v1+list+"?task=", ofRounds["task"])},
			{list + "?name", with(v1+list+"?name=", k.task)},
			{list + "?device_key", with(v1+list+"?device_key=", k.device)},
			{list + "?device_key of none", fixed(v1 + list + "?device_key=none")},
			{list + "?language", with(v1+list+"?language=", k.language)},
			{list + "?status", with(v1+list+"?status=", ofRounds["status"])},
			{list + ", two filters", k.several(v1+list, 2, ofRounds, "name", "device_key", "language", "status")},
			{list + ", three filters", k.several(v1+list, 3, ofRounds, "name", "device_key", "language", "status")},
		}...)
	}
	return append(all, []question{
		{"/kernels/{sha256}", func() string { return v1 + "/kernels/" + k.some().Exported }},
		{"/texts/{sha256}", func() string { return v1 + "/texts/" + k.some().Candidate }},
		{"/tasks", k.several(v1+"/tasks", 1, ofRuns, "limit")},
		{"/tasks, 200 of them", fixed(v1 + "/tasks?limit=200")},
		{"/tasks?name", with(v1+"/tasks?name=", k.task)},
		{"/tasks/{fingerprint}", func() string { return v1 + "/tasks/" + k.some().Task }},
		{"/lessons", fixed(v1 + "/lessons")},
		{"/lessons?device_key", with(v1+"/lessons?device_key=", k.device)},
		{"/lessons?bottleneck", with(v1+"/lessons?bottleneck=", func() string { return one(k, "memory_ceiling", "local_search", "idle_cores", "no_such_rule") })},
		{"/lessons?operators", with(v1+"/lessons?operators=", k.operator)},
		{"/lessons, two operators", func() string { return v1 + "/lessons?operators=" + k.operator() + "," + k.operator() }},
		{"/benches", k.several(v1+"/benches", 1, ofRuns, "limit")},
		{"/benches/{id}", func() string { return fmt.Sprint(v1+"/benches/", k.number(k.others.benches)) }},
		{"/audits", fixed(v1 + "/audits")},
		{"/audits/{id}/pairs", func() string {
			return fmt.Sprintf(v1+"/audits/%d/pairs?limit=%s", k.number(k.others.audits), k.limit())
		}},
		{"/audits/{id}/pairs/{index}", func() string {
			return fmt.Sprintf(v1+"/audits/%d/pairs/%d", k.number(k.others.audits), k.rng.IntN(300))
		}},
		{"/nights", k.several(v1+"/nights", 2, ofRuns, "limit", "sort")},
		{"/pipelines", k.several(v1+"/pipelines", 2, ofRuns, "limit", "sort")},
		{"/pipelines/{id}/stages", func() string { return fmt.Sprintf(v1+"/pipelines/%d/stages", k.number(k.others.pipelines)) }},
		{"/policies", fixed(v1 + "/policies")},
		{"/promotions", fixed(v1 + "/promotions")},
		{"/devices", fixed(v1 + "/devices")},
		{"/costs", fixed(v1 + "/costs")},
		{"/costs?since", with(v1+"/costs?since=", k.moment)},
		{"/costs/tasks", fixed(v1 + "/costs/tasks")},
		{"/costs/tasks?since", with(v1+"/costs/tasks?since=", k.moment)},
		{"/queue", k.several(v1+"/queue", 1, ofRuns, "limit")},
		{"/stats", fixed(v1 + "/stats")},
	}...)
}

func (k known) pages() []question {
	narrow := map[string]func() string{
		"operator": k.operator, "device": k.device, "language": k.language, "model": k.coder, "speedup": k.speedup, "since": k.day, "until": k.day,
		"verdict": func() string {
			return one(k, "faster", "no_difference", "undecided", "not_timed", "nothing_faster", "not_certified", "queued", "running", "invalid", "declined", "failed")
		},
	}
	history := func(names ...string) func() string { return k.several("/history", len(names), narrow, names...) }
	run := func(rest string) func() string {
		return func() string { return fmt.Sprintf("/runs/%d%s", k.run(), rest) }
	}
	certified := func(rest string) func() string {
		return func() string { return fmt.Sprintf("/runs/%d%s", k.some().Run, rest) }
	}
	all := []question{
		{"page /", fixed("/")}, {"page /now/live", fixed("/now/live")},
		{"page /runs/{run}", run("")},
		{"page /runs/{run}/rounds/{round}", func() string { return fmt.Sprintf("/runs/%d/rounds/%d", k.run(), k.rng.IntN(k.settings.perRun)) }},
		{"page /runs/{run}/talk", func() string { return fmt.Sprintf("/runs/%d/talk", one(k, k.others.spoken...)) }},
		{"download /runs/{run}/kernel.py", certified("/kernel.py")},
		{"download /runs/{run}/certificate.json", certified("/certificate.json")},
		{"download /runs/{run}/reference.py", run("/reference.py")},
		{"download /runs/{run}/report.html", run("/report.html")},
		{"download /runs/{run}/rounds/{round}/source.py", func() string {
			return fmt.Sprintf("/runs/%d/rounds/%d/source.py", k.run(), k.rng.IntN(k.settings.perRun))
		}},
		{"page /history", fixed("/history")},
		{"page /history?before", func() string { return fmt.Sprint("/history?before=", k.run()) }},
		{"page /history?q", with("/history?q=", k.words)},
	}
	for _, name := range []string{"operator", "device", "language", "verdict", "speedup", "model", "since", "until"} {
		all = append(all, question{"page /history?" + name, history(name)})
	}
	return append(all, []question{
		{"page /history, three filters", k.several("/history", 3, narrow, "operator", "device", "language", "verdict", "speedup", "model", "since", "until")},
		{"page /history, five filters", k.several("/history", 5, narrow, "operator", "device", "language", "verdict", "speedup", "model", "since", "until")},
		{"page /compare", func() string { return fmt.Sprintf("/compare?a=%d&b=%d", k.run(), k.run()) }},
		{"page /tasks", func() string { return one(k, "/tasks", "/tasks?after="+k.some().Task) }},
		{"page /tasks?name", with("/tasks?name=", k.task)},
		{"page /tasks?task", func() string { return "/tasks?task=" + k.some().Task }},
		{"page /lessons", fixed("/lessons")},
		{"page /lessons?operator", func() string { return "/lessons?operator=aten." + k.operator() }},
		{"page /lessons?bottleneck", with("/lessons?bottleneck=", func() string { return one(k, "memory_ceiling", "local_search", "idle_cores") })},
		{"page /lessons?device", with("/lessons?device=", k.device)},
		{"page /lessons?run", func() string { return fmt.Sprint("/lessons?run=", k.run()) }},
		{"page /benches", fixed("/benches")},
		{"page /benches/{bench}", func() string { return fmt.Sprint("/benches/", k.number(k.others.benches)) }},
		{"page /audits", fixed("/audits")},
		{"page /audits/{audit}", func() string { return fmt.Sprintf("/audits/%d?from=%d", k.number(k.others.audits), 100*k.rng.IntN(3)) }},
		{"page /training", fixed("/training")},
		{"page /training/samples", func() string { return fmt.Sprint("/training/samples?after=", k.rng.Int64N(max(k.others.episodes, 1))) }},
		{"page /training/{pipeline}", func() string { return fmt.Sprint("/training/", k.number(k.others.pipelines)) }},
		{"page /training/{pipeline}/{stage}", func() string {
			return fmt.Sprintf("/training/%d/%s", k.number(k.others.pipelines), one(k, stageNames...))
		}},
		{"page /policies", fixed("/policies")},
		{"page /policies/{policy}", func() string { return fmt.Sprint("/policies/", k.number(k.others.policies)) }},
		{"page /policies/{policy}/promote", func() string { return fmt.Sprintf("/policies/%d/promote", k.number(k.others.policies)) }},
		{"page /policies/rollback", fixed("/policies/rollback")},
		{"page /costs", fixed("/costs")},
		{"page /costs?days", with("/costs?days=", func() string { return one(k, "7", "30", "90", "365") })},
	}...)
}

// line is a command to run.
type line struct {
	name string
	args func() []string
}

// commands are those that people wait for.
func (k known) commands() []line {
	run := func() string { return fmt.Sprint(k.run()) }
	on := func(args ...any) func() []string {
		return func() (all []string) {
			for _, a := range args {
				if draw, ok := a.(func() string); ok {
					a = draw()
				}
				all = append(all, fmt.Sprint(a))
			}
			return all
		}
	}
	return []line{
		{"ls", on("ls")}, {"ls --before", on("ls", "--before", run)}, {"ls --status", on("ls", "--status", func() string { return one(k, "done", "failed", "running") })},
		{"ls --task", on("ls", "--task", k.task)}, {"best NAME", on("best", func() string { return k.some().TaskName })},
		{"best FILE", on("best", func() string { return "/home/someone/kernels/" + k.some().TaskName + ".py" })}, {"search", on("search", func() string { return one(k, "softmax", "bits", "unroll", "elements") })},
		{"lessons", on("lessons")}, {"lessons --operators", on("lessons", "--operators", k.operator)}, {"show", on("show", run)},
	}
}
