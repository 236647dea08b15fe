package config

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
)

// The words that some keys take.
var (
	sandboxes  = []string{"strict", "weak"}
	strategies = []string{"rounds", "beam", "react"}
	judgeModes = []string{"both", "correction", "optimisation", "none", "self", "score"}
	metrics    = []string{"selected", "full"}
	profiles   = []string{"auto", "full", "compact"}
	languages  = append([]string{"auto"}, kernelwright.LanguageNames(kernelwright.AllLanguages())...)
	devices    = []string{"cpu", "cuda", "auto"} // and cuda:1 for the second GPU, cuda:0,1 for two, cuda:all
	coders     = []string{"builtin"}             // or a model
	forms      = []string{"native", "load_inline"}
	judges     = []string{"rules", "none"} // or a model
	composers  = []string{"combinatorial"} // or a model
	baselines  = kernelwright.Shared.AllBaselines()
	precisions = []string{"float32"}
	customCode = []string{"required", "any"}
	levels     = []string{"debug", "info", "warn", "error"}
	formats    = []string{"text", "json"}
)

// The bounds past which a value can only be a slip.
const (
	maxThreads  = 4096
	maxRounds   = 10000
	maxMS       = 60 * 60 * 1000
	maxAtOnce   = 64
	maxDuration = 30 * 24 * time.Hour
)

// check says what is wrong with the values, each where it comes from.
func check(c Config, origins Origins, errs *errorList) {
	fail := func(key, text, hint string) {
		from, known := origins[key]
		table, _ := cutLast(key)
		for _, k := range KeysOf(c) { // of a table that people named the first key tells where it is
			if from.Where == "" && (strings.HasPrefix(k, key+".") || len(split(table)) > 2 && strings.HasPrefix(k, table+".")) {
				from, known = origins[k], true
			}
		}
		if !known || from.Kind == "default" {
			from.at = ofDefaults
		}
		errs.add(from.at, key, from.Where, key+" "+text, hint)
	}
	checkSecrets(c, fail) // first: no other sentence may repeat one
	oneOf := func(key, value string, words []string) {
		if slices.Contains(words, value) {
			return
		}
		hint := "it takes " + orList(words)
		if near := nearestWord(value, words); near != "" {
			hint = fmt.Sprintf("did you mean %q? %s", near, hint)
		}
		fail(key, fmt.Sprintf("is %q", value), hint)
	}
	between := func(key string, value, low, high int) {
		if value < low || value > high {
			fail(key, fmt.Sprintf("is %d", value), fmt.Sprintf("it takes a whole number from %d to %d", low, high))
		}
	}
	lasting := func(key string, value Duration) {
		if value <= 0 || value.Std() > maxDuration {
			fail(key, fmt.Sprintf("is %q", value), `it takes a length of time above zero, such as "10m"`)
		}
	}

	if kind, which, indexed := strings.Cut(c.Device, ":"); indexed && kind == "cuda" {
		seen := map[uint64]bool{}
		for text := range strings.SplitSeq(which, ",") {
			index, err := strconv.ParseUint(text, 10, 16)
			if which != "all" && (err != nil || seen[index]) {
				fail("device", fmt.Sprintf("is %q", c.Device), `GPUs are counted from 0: "cuda:0", "cuda:0,1" for two, "cuda:all"`)
				break
			}
			seen[index] = true
		}
	} else {
		oneOf("device", c.Device, devices)
	}
	between("threads", c.Threads, 0, maxThreads)
	oneOf("sandbox", c.Sandbox, sandboxes)

	for _, p := range c.Watch.Patterns {
		if _, err := filepath.Match(p, "x"); err != nil || p == "" || strings.ContainsRune(p, filepath.Separator) {
			fail("watch.patterns", fmt.Sprintf("has %q, which is no pattern of a file's name", p), `use * and ?, without folders: "*.py"`)
		}
	}
	if len(c.Watch.Patterns) == 0 {
		fail("watch.patterns", "is empty, so that no file would count", `the default is ["*.py"]`)
	}
	if slices.Contains(c.Watch.Folders, "") {
		fail("watch.folders", "has an empty name", "name the folder, or leave the list empty")
	}
	between("watch.debounce_ms", c.Watch.DebounceMS, 1, maxMS)
	between("watch.poll_ms", c.Watch.PollMS, 10, maxMS)

	between("rounds.max", c.Rounds.Max, 1, maxRounds)
	lasting("rounds.wall_time", c.Rounds.WallTime)
	// Written so that NaN, which compares false with everything, is refused.
	if !(c.Rounds.Headroom > 0 && c.Rounds.Headroom <= 1) {
		fail("rounds.headroom", fmt.Sprintf("is %v", c.Rounds.Headroom), "it takes a share above 0 and up to 1, such as 0.95")
	}
	between("rounds.patience", c.Rounds.Patience, 1, maxRounds)
	oneOf("rounds.strategy", c.Rounds.Strategy, strategies)
	oneOf("rounds.judge", c.Rounds.Judge, judgeModes)
	oneOf("rounds.metrics", c.Rounds.Metrics, metrics)
	oneOf("prompts.profile", c.Prompts.Profile, profiles)
	oneOf("rounds.language", c.Rounds.Language, languages)
	between("beam.width", c.Beam.Width, 1, kernelwright.MaxBeam)
	between("beam.samples", c.Beam.Samples, 1, kernelwright.MaxBeam)
	between("react.turns", c.React.Turns, 1, kernelwright.MaxReactTurns)
	between("react.context_tokens", c.React.ContextTokens, kernelwright.LeastReactContext, kernelwright.MaxReactContext)
	agent := func(key, value string, words []string) {
		if provider, model, ok := strings.Cut(value, ":"); ok && provider != "" && model != "" && tableName.MatchString(value) {
			if provider == trainingProvider {
				fail(key, fmt.Sprintf("is %q, a policy in training", value), "such a policy answers within its training alone: name another model")
			}
			return
		}
		if slices.Contains(words, value) {
			return
		}
		hint := "it takes " + orList(words) + `, or a model as "provider:model", such as "anthropic:claude-sonnet-5-5"`
		if near := nearestWord(value, words); near != "" {
			hint = fmt.Sprintf("did you mean %q? %s", near, hint)
		}
		fail(key, fmt.Sprintf("is %q", value), hint)
	}
	agent("coder.name", c.Coder.Name, coders)
	agent("judge.name", c.Judge.Name, judges)
	agent("training.composer", c.Training.Composer, composers)
	oneOf("coder.form", c.Coder.Form, forms)
	if c.Coder.Form == "load_inline" && c.Rounds.Language != "cuda" && c.Rounds.Language != "auto" {
		fail("coder.form", `is "load_inline"`, `that form is for rounds.language "cuda"; the others have one form each, "native"`)
	}
	if c.Coder.Name == "builtin" {
		needs := func(key, value string) {
			fail(key, fmt.Sprintf("is %q, which the built-in Coder cannot do", value), "name a model with coder.name: docs/models.md says how")
		}
		switch {
		case c.Rounds.Strategy == "react":
			needs("rounds.strategy", c.Rounds.Strategy)
		case c.Rounds.Judge == "self":
			needs("rounds.judge", c.Rounds.Judge)
		case kernelwright.Language(c.Rounds.Language).Known() && !kernelwright.Language(c.Rounds.Language).Row().Builtin:
			needs("rounds.language", c.Rounds.Language)
		}
	}
	if gpu := strings.HasPrefix(c.Device, "cuda"); c.Device == "cpu" || gpu {
		kind, hint := kernelwright.CPUDevice, "on a CPU candidates are written in %s; --device cuda is a GPU"
		if gpu {
			kind, hint = kernelwright.CUDADevice, "on a GPU candidates are written in %s"
		}
		if name := c.Rounds.Language; name != "auto" && !kernelwright.Language(name).RunsOn(kind) && (kernelwright.Language(name).Known() || !gpu) {
			fail("rounds.language", fmt.Sprintf("is %q", name), fmt.Sprintf(hint, orList(kernelwright.LanguageNames(kernelwright.LanguagesOn(kind)))))
		}
	}

	if c.Sandbox == "weak" && strings.Contains(c.Coder.Name, ":") {
		fail("sandbox", `is "weak", and the Coder is a language model`, `what a model writes is run with sandbox = "strict" alone`)
	}

	if c.Sandbox == "weak" && strings.Contains(c.Training.Composer, ":") {
		fail("sandbox", `is "weak", and a language model writes tasks`, `what a model writes is run with sandbox = "strict" alone`)
	}

	checkModels(c, fail, between)

	lasting("evaluation.timeout", c.Evaluation.Timeout)
	lasting("evaluation.certify_time", c.Evaluation.CertifyTime)
	lasting("evaluation.inspect_timeout", c.Evaluation.InspectTimeout)
	if n := c.Evaluation.AtOnce; n < 1 || n > maxAtOnce {
		fail("evaluation.at_once", fmt.Sprintf("is %d", n), fmt.Sprintf("it takes a whole number from 1 (one after the other) to %d", maxAtOnce))
	}
	if w := c.Evaluation.KeepWarm.Std(); w < 0 || w > 24*time.Hour {
		fail("evaluation.keep_warm", fmt.Sprintf("is %v", c.Evaluation.KeepWarm), `it takes a time up to "24h", and "0s" for not at all`)
	}

	for i, b := range c.Evaluation.Baselines {
		if !slices.Contains(baselines, b) {
			hint := "it takes some of " + orList(baselines)
			if near := nearestWord(b, baselines); near != "" {
				hint = fmt.Sprintf("did you mean %q? %s", near, hint)
			}
			fail("evaluation.baselines", fmt.Sprintf("has %q", b), hint)
		}
		if slices.Contains(c.Evaluation.Baselines[:i], b) {
			fail("evaluation.baselines", fmt.Sprintf("has %q twice", b), "name each one once")
		}
	}
	if !slices.Contains(c.Evaluation.Baselines, baselines[0]) {
		fail("evaluation.baselines", fmt.Sprintf("lacks %q", baselines[0]), "it is always measured, to tell whether the machine is still as it was")
	}
	oneOf("evaluation.precision", c.Evaluation.Precision, precisions)
	oneOf("evaluation.custom_code", c.Evaluation.CustomCode, customCode)

	lasting("training.eager_min", c.Training.EagerMin)
	if c.Training.EagerMax <= c.Training.EagerMin {
		fail("training.eager_max", fmt.Sprintf("is %q", c.Training.EagerMax), fmt.Sprintf("it takes more than training.eager_min, %q", c.Training.EagerMin))
	}
	between("training.processes", c.Training.Processes, 1, 64)
	between("training.lora_rank", c.Training.LoraRank, 0, 1024)
	between("training.tasks", c.Training.Tasks, 1, 100_000)
	between("training.pairs", c.Training.Pairs, 1, 10_000_000)
	between("training.warmup_steps", c.Training.WarmupSteps, 0, 1_000_000)
	between("training.agentic_steps", c.Training.AgenticSteps, 0, 1_000_000)
	between("training.tasks_per_step", c.Training.TasksPerStep, 1, 100_000)
	between("training.samples_per_task", c.Training.SamplesPerTask, 1, 1024)
	between("training.rounds", c.Training.Rounds, 1, 200)
	between("training.answer_tokens", c.Training.AnswerTokens, 16, 1_000_000)

	checkSchedule(c, fail)

	between("retention.days", c.Retention.Days, 0, 36500)
	between("retention.least_bytes", c.Retention.LeastBytes, 0, 1<<30)

	lasting("daemon.grace", c.Daemon.Grace)
	between("daemon.attempts", c.Daemon.Attempts, 1, 100)
	if c.HTTP.Listen != "" {
		if _, port, err := net.SplitHostPort(c.HTTP.Listen); err != nil || port == "" {
			fail("http.listen", fmt.Sprintf("is %q", c.HTTP.Listen), `it takes HOST:PORT, such as "127.0.0.1:7791"; port 0 is any free one`)
		}
	}
	if c.HTTP.Episodes && c.Sandbox != "strict" {
		fail("http.episodes", "is true, and what a policy writes runs in the strict sandbox alone", `set sandbox = "strict"`)
	}
	if (c.HTTP.TLSCert == "") != (c.HTTP.TLSKey == "") {
		fail("http.tls_cert", "and http.tls_key belong together, and one of them is empty", "name both files, or none")
	}
	oneOf("log.level", c.Log.Level, levels)
	oneOf("log.format", c.Log.Format, formats)
}

func nearestWord(value string, words []string) string {
	if strings.EqualFold(value, "gpu") && slices.Contains(words, "cuda") {
		return "cuda"
	}
	best, at := "", max(2, len(value)/2)+1
	for _, w := range words {
		if d := distance(strings.ToLower(value), w); d < at {
			best, at = w, d
		}
	}
	return best
}

func orList(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = fmt.Sprintf("%q", w)
	}
	if len(quoted) == 1 {
		return quoted[0]
	}
	return strings.Join(quoted[:len(quoted)-1], ", ") + " or " + quoted[len(quoted)-1]
}
