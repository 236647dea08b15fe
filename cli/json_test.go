package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
)

var (
	isoForm = regexp.MustCompile(`^\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d\.\d{3}Z)?$`)
	// What holds a time, wherever it stands.
	timeKeys = []string{"created", "started", "finished", "certified_at", "measured_at", "began", "ended", "added_at", "day", "digests_made_at", "due", "until", "seen", "next"}
	// Foreign text, which may be JSON: a program's, a model's, or a place in one.
	foreignKeys = []string{"source", "text", "arguments", "output", "log", "excerpt", "diff"}
	unknownZero = regexp.MustCompile(`(_ms|_gbs|_gflops|^headroom|^speedup)$`)
)

// breaches says where a value that --json printed breaks the rules of internal/outward.
// The key is what it stands under; "" for an element of a list.
func breaches(at, key string, v any) (found []string) {
	bad := func(what string) { found = append(found, fmt.Sprintf("%s: %s (%v)", at, what, v)) }
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			found = append(found, breaches(at+"."+k, k, x)...)
		}
	case []any:
		for i, x := range v {
			found = append(found, breaches(fmt.Sprintf("%s[%d]", at, i), "", x)...)
		}
	case string:
		held := strings.HasPrefix(v, "{") || strings.HasPrefix(v, "[")
		switch {
		case v == "" && key != "" && key != "value":
			bad("an empty text stands for what is not known")
		case held && json.Valid([]byte(v)) && !slices.Contains(foreignKeys, key):
			bad("JSON in a text")
		case slices.Contains(timeKeys, key) && !isoForm.MatchString(v):
			bad("a time that is not in ISO 8601")
		}
	case json.Number:
		n, err := v.Float64()
		switch {
		case err != nil:
			bad("no number")
		case n > 1e12 && n < 5e12 && !strings.HasSuffix(key, "bytes"): // Unix milliseconds of 2001 to 2128
			bad("a time as a number")
		case n == 0 && unknownZero.MatchString(key):
			bad("0 stands for what is not known")
		}
	}
	return found
}

// objects reads what a command printed: objects alone, where lines are promised one
// on each.
func objects(out string, lines bool) (all []map[string]any, err error) {
	dec := json.NewDecoder(strings.NewReader(out))
	dec.UseNumber()
	for {
		var one map[string]any
		if err := dec.Decode(&one); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if n := strings.Count(out, "\n"); lines && n != len(all) {
		return nil, fmt.Errorf("%d objects on %d lines", len(all), n)
	}
	return all, nil
}

// jsonRules is a command of scripts: `jsonrules [-lines] FILE` holds what a command
// with --json printed to the rules; FILE may be stdout.
func jsonRules(ts *testscript.TestScript, neg bool, args []string) {
	lines := args[0] == "-lines"
	all, err := objects(ts.ReadFile(args[len(args)-1]), lines)
	ts.Check(err)
	var found []string
	for i, one := range all {
		found = append(found, breaches(fmt.Sprint(i), "", one)...)
	}
	if len(all) == 0 || (len(found) > 0) != neg {
		ts.Fatalf("%d objects: %s", len(all), strings.Join(found, "\n"))
	}
}

// seedForJSON records a run with all that a record may have.
func seedForJSON(t *testing.T, data string) {
	t.Helper()
	s, err := store.Open(filepath.Join(data, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	defer func() { check(s.Close()) }()
	task := kernelwright.Task{Fingerprint: strings.Repeat("ab", 32), Name: "softmax", Source: "class Model: pass\n", Graph: []byte(`{"nodes": []}`)}
	device := kernelwright.Device{Kind: kernelwright.CPUDevice, Key: "key", Name: "a CPU"}
	check(s.SaveTask(ctx, task))
	check(s.SaveDevice(ctx, device))
	run, err := s.CreateRun(ctx, kernelwright.Run{
		Task: task.Fingerprint, TaskName: task.Name, Path: "/x/softmax.py", Device: "cpu", DeviceKey: device.Key, Settings: `{"rounds": 3}`,
		Strategy: "rounds", Coder: "recorded:a", Judge: "rules", MaxRounds: 3, StartedMS: 1764417600000,
	})
	check(err)
	for i, status := range []kernelwright.Status{kernelwright.BuildFailed, kernelwright.Wrong, kernelwright.Correct} {
		v := kernelwright.Verdict{Status: status, Level: kernelwright.Quick, Reason: "so it is"}
		if status.OK() {
			v.CandidateMS, v.Headroom, v.Speedup = 2, 0.5, &kernelwright.Speedup{Value: 2, Low: 1.5, High: 2.5, Against: "eager"}
		}
		check(s.Append(ctx, llm.Record{
			Key: llm.Key{Run: run.ID, Round: i, Agent: "coder"}, Model: "recorded:a", BeganMS: 1764417600000,
			Request: llm.Request{Messages: []llm.Message{{Role: llm.User, Text: "write"}}}, Reply: llm.Reply{Text: "{}", Stop: llm.StopEnd},
		}))
		check(s.AppendRound(ctx, kernelwright.Round{
			RunID: run.ID, Index: i, Candidate: kernelwright.Candidate{Source: fmt.Sprintf("class ModelNew: %d\n", i), Language: kernelwright.CPP}, Verdict: v, StartedMS: 1764417600000,
			Feedback: &kernelwright.Feedback{Kind: kernelwright.Correction, Issue: "i", Why: "w", Fix: "f"},
		}))
	}
	v := kernelwright.Verdict{Status: kernelwright.Certified, Level: kernelwright.Certify, CandidateMS: 2, Exported: "# it\n", ExportedSHA256: kernelwright.HashText("# it\n")}
	check(s.SetCertificate(ctx, run.ID, 2, v))
	run.Status, run.Stop, run.FinishedMS = kernelwright.RunDone, kernelwright.StopRounds, 1764417660000
	check(s.UpdateRun(ctx, run))
	_, err = s.CreateRun(ctx, kernelwright.Run{TaskName: "bad", Status: kernelwright.RunInvalid, Reason: "it is none"})
	check(err)
	night, err := s.BeginNight(ctx, store.Night{DueMS: 1764417600000, UntilMS: 1764446400000, BegunMS: 1764417600000, SeenMS: 1764417600000, Owner: store.Self()})
	check(err)
	night.EndedMS, night.Stop, night.Reason, night.WorkedMS, night.Pipeline = 1764417660000, store.NightFailed, "it could not go on", 60000, 1
	check(s.SaveNight(ctx, night))
	_, err = s.BeginNight(ctx, store.Night{DueMS: 1764417600000, UntilMS: 1764446400000, BegunMS: 1764417600000, SeenMS: 1764417600000, Owner: "1@2@3"})
	check(err)
	pipeline, err := s.BeginPipeline(ctx, []byte(`{"small":true,"seed":1}`))
	check(err)
	stage, err := s.BeginStage(ctx, pipeline.ID, "rft", []byte(`{"collect":{"attempt":1}}`), []byte(`{"epochs":1}`))
	check(err)
	stage.Status, stage.Outputs, stage.Reason = store.StageSkipped, []byte(`{"policy":"p","held_out":{"compositions":{"n":16},"kinds":null},"counts":{"kept":0}}`), "there is nothing to learn from"
	check(s.SaveStage(ctx, stage))
	_, err = s.BeginStage(ctx, pipeline.ID, "critic", []byte(`{}`), []byte(`{}`))
	check(err)
	_, err = s.SavePolicy(ctx, store.Policy{Digest: strings.Repeat("cd", 32), Files: []byte("[]")}, func(int64) error { return nil })
	check(err)
	check(s.SaveBaseline(ctx, store.Baseline{NamedBaseline: kernelwright.NamedBaseline{Name: "mine", Source: "x", Language: kernelwright.CPP}, Task: task.Fingerprint, TaskName: "softmax", Device: "cpu"}))
}

// Every verb keeps the rules of --json in what it prints, also where it fails. What
// verbs print that need a Python with PyTorch, scripts hold to the rules.
func TestJSONKeepsItsRules(t *testing.T) {
	data, other := t.TempDir(), t.TempDir()
	seedForJSON(t, data)
	reference := filepath.Join(other, "a.py")
	if err := os.WriteFile(reference, []byte(parts), 0o644); err != nil {
		t.Fatal(err)
	}
	sound := filepath.Join(other, "sound.toml")
	if err := os.WriteFile(sound, []byte("[rounds]\nmax = 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	lines, fails := true, true
	type tried struct {
		verb         string
		args         string
		lines, fails bool
	}
	cases := []tried{
		{verb: "history ls"}, {verb: "history ls", args: "--task softmax"}, {verb: "history ls", args: "--status lost", fails: fails},
		{verb: "history show", args: "1"}, {verb: "history show", args: "1 --talk"}, {verb: "history show", args: "1 0"}, {verb: "history show", args: "2"}, {verb: "history show", args: "9", fails: fails},
		{verb: "history best", args: "softmax"}, {verb: "history best", args: "none", fails: fails},
		{verb: "history diff", args: "1"}, {verb: "history diff", args: "1 1"}, {verb: "history diff", args: "1/0 1/0"},
		{verb: "history bench"}, {verb: "history bench", args: "4", fails: fails},
		{verb: "history replay", args: "1", fails: fails},
		{verb: "history check"}, {verb: "history lessons"}, {verb: "history costs"},
		{verb: "history stats"}, {verb: "history prune", args: "--days 30"}, {verb: "history prune", fails: fails}, {verb: "history backup", args: other + "/copy.db"}, {verb: "history restore", args: other + "/none.db", fails: fails},
		{verb: "history export", args: "--out " + other + "/rows.jsonl"}, {verb: "history export", args: "--out " + other, fails: fails},
		{verb: "history sql", args: "VALUES(1)", lines: lines}, {verb: "history sql", args: "VALUES(", lines: lines, fails: fails},
		{verb: "history search", args: "so"}, {verb: "history search", args: "--failed"}, {verb: "history search", args: "quagga", fails: fails},
		{verb: "verify", args: reference, fails: fails},
		{verb: "export", args: "1 --out " + filepath.Join(other, "out.py")}, {verb: "export", args: "1 --round 0 --out x", fails: fails},
		{verb: "config show"}, {verb: "config check", fails: fails}, {verb: "config check", args: sound}, {verb: "config check", args: reference, fails: fails},
		{verb: "baseline ls"}, {verb: "baseline remove", args: reference + " --name none", fails: fails}, {verb: "baseline add", args: reference + " none --name a", fails: fails},
		{verb: "version"}, {verb: "completion", args: "bash"}, {verb: "completion", args: "none", fails: fails},
		{verb: "run", args: "none.py", fails: fails}, {verb: "run", args: reference, fails: fails},
		{verb: "eval", args: reference + " none.py", fails: fails}, {verb: "eval", args: reference + " none.py other.py", lines: lines, fails: fails},
		{verb: "bench", args: other + "/none", fails: fails}, {verb: "recheck", args: "softmax", fails: fails},
		{verb: "build", args: "none.py", lines: lines, fails: fails}, {verb: "inspect", args: reference, lines: lines, fails: fails},
		{verb: "daemon", args: "--watch " + other + "/none", lines: lines, fails: fails}, {verb: "daemon", args: "--until-idle --watch " + other + "/none", fails: fails},
		{verb: "mcp", args: "--root " + other + "/none", fails: fails}, {verb: "doctor"},
		{verb: "audit", args: other + "/none", lines: lines, fails: fails}, {verb: "history audit"}, {verb: "history audit", args: "4", fails: fails},
		{verb: "train nights"}, {verb: "train nights", args: "--limit -1", fails: fails}, {verb: "train data"}, {verb: "train data", args: "--out " + filepath.Join(other, "data")},
		{verb: "train ls"}, {verb: "train status"}, {verb: "train show", args: "1"}, {verb: "train show", args: "1 rft"}, {verb: "train show", args: "9", fails: fails}, {verb: "train rm", args: "9", fails: fails},
		{verb: "train run", args: "--stage none", lines: lines, fails: fails},
		{verb: "train serve", args: "--listen 192.0.2.1:0", fails: fails},
		{verb: "train tasks ls"}, {verb: "train tasks show", args: "none", fails: fails}, {verb: "train tasks export", args: "none --out " + other + "/set", fails: fails},
		{verb: "policy ls", lines: lines}, {verb: "policy show", args: "v1"}, {verb: "policy show", fails: fails}, {verb: "policy add", args: other, fails: fails},
		{verb: "policy gate", args: "v9", fails: fails}, {verb: "policy promote", args: "v9", fails: fails}, {verb: "policy rollback", fails: fails}, {verb: "policy serve", args: "v1 --listen 0.0.0.0:0", fails: fails},
		{verb: "policy export", args: "v9 --out " + other + "/policy", fails: fails}, {verb: "policy rm", args: "v9", fails: fails},
		{verb: "queue ls"}, {verb: "queue pause"}, {verb: "queue resume"}, {verb: "queue pause", args: "9", fails: fails}, {verb: "queue priority", args: "1 3", fails: fails},
		{verb: "queue cancel", args: "1", fails: fails}, {verb: "queue retry", args: "1", fails: fails}, {verb: "queue ls", args: "--limit 0", fails: fails},
		{verb: "train tasks import", args: other + "/none", fails: fails}, {verb: "train tasks make", args: "--name /", fails: fails},
	}
	var g grammar
	k, err := kong.New(&g, kong.NamedMapper("path", paths()))
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range k.Model.Leaves(true) {
		verb := strings.TrimPrefix(strings.Join(strings.Fields(strings.ReplaceAll(leaf.FullPath(), k.Model.Name, "")), " "), " ")
		if !slices.ContainsFunc(cases, func(c tried) bool { return c.verb == verb }) {
			t.Errorf("the verb %q is not tried", verb)
		}
	}
	for _, c := range cases {
		words := append(strings.Fields(c.verb), append(strings.Fields(c.args), "--json", "--data-dir", data)...)
		var out, errs bytes.Buffer
		err := runWith(t.Context(), words, []string{"HOME=" + t.TempDir(), "KERNELWRIGHT_PYTHON=" + filepath.Join(t.TempDir(), "none")}, strings.NewReader(""), &out, &errs)
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", strings.Join(words, " "), err)
		}
		all, bad := objects(out.String(), c.lines)
		if c.verb == "mcp" && out.Len() == 0 { // its standard output is the protocol's
			continue
		}
		if bad != nil || len(all) != 1 {
			t.Errorf("%s: %d objects, %v: %s", strings.Join(words, " "), len(all), bad, out.String())
			continue
		}
		if found := breaches("", "", all[0]); len(found) > 0 {
			t.Errorf("%s:\n%s", strings.Join(words, " "), strings.Join(found, "\n"))
		}
		if code, _ := all[0]["exit_code"].(json.Number); c.fails && (all[0]["error"] == nil || code.String() != fmt.Sprint(ExitCode(err))) {
			t.Errorf("%s: the error is not in %v", strings.Join(words, " "), all[0])
		}
	}
}

// The rules see what breaks them.
func TestBreachesAreSeen(t *testing.T) {
	for text, want := range map[string]string{
		`{"reason": ""}`:                        "an empty text",
		`{"list": [{"settings": "{\"a\":1}"}]}`: "JSON in a text",
		`{"run": {"created": 1764417600000}}`:   "a time as a number",
		`{"created": "yesterday"}`:              "not in ISO 8601",
		`{"candidate_ms": 0}`:                   "0 stands",
		`{"headroom": 0.0}`:                     "0 stands",
		`{"created": "2026-11-29T12:00:00.000Z", "source": "{}", "words": [""], "value": "", "round": 0, "hint": null}`: "",
	} {
		all, err := objects(text, false)
		if err != nil {
			t.Fatal(err)
		}
		found := strings.Join(breaches("", "", all[0]), "; ")
		if want == "" && found != "" || !strings.Contains(found, want) {
			t.Errorf("%s: %q, want %q", text, found, want)
		}
	}
}
