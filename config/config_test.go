package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"pgregory.net/rapid"

	"github.com/kernelwright/kernelwright"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaultNamesEveryKeyAndPassesItsOwnCheck(t *testing.T) {
	var raw map[string]any
	md, err := toml.Decode(kernelwright.DefaultConfig, &raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range Keys() {
		if !md.IsDefined(strings.Split(k, ".")...) {
			t.Errorf("config.toml lacks %s", k)
		}
	}
	if _, _, err := Load(""); err != nil {
		t.Error(err)
	}
}

func TestOriginsFollowTheStrongest(t *testing.T) {
	path := write(t, "threads = 2\n[rounds]\nmax = 5\nwall_time = \"90s\"\n")
	c, origins, err := Read(Source{
		File:      path,
		Env:       []string{"KERNELWRIGHT_ROUNDS_MAX=7", "KERNELWRIGHT_WATCH_FOLDERS=a, b", "HOME=/x"},
		Flags:     map[string]string{"rounds.max": "9"},
		FlagNames: map[string]string{"rounds.max": "--rounds"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Threads != 2 || c.Rounds.Max != 9 || c.Rounds.WallTime.Std() != 90*time.Second || len(c.Watch.Folders) != 2 {
		t.Errorf("%+v", c)
	}
	for key, want := range map[string]string{
		"rounds.max": "--rounds", "rounds.wall_time": path + ":4", "threads": path + ":1",
		"watch.folders": "KERNELWRIGHT_WATCH_FOLDERS", "device": "default",
	} {
		if got := origins[key].String(); got != want {
			t.Errorf("%s: origin %q, want %q", key, got, want)
		}
	}
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	for name, tt := range map[string]struct{ text, where, says, hint string }{
		"mistyped":       {"[rounds]\nmaxx = 3\n", ":2", `unknown key "rounds.maxx"`, `"rounds.max"`},
		"wrong section":  {"debounce_ms = 3\n", ":1", `unknown key "debounce_ms"`, `"watch.debounce_ms"`},
		"unknown table":  {"\n[round]\nmax = 3\n", ":3", `unknown key "round`, `"rounds.max"`},
		"a table's":      {"round = 3\n", ":1", `unknown key "round"`, "rounds.max, "},
		"GPUs":           {"device = \"cuda:0,x\"\n", ":1", `device is "cuda:0,x"`, `"cuda:0,1" for two`},
		"GPU twice":      {"device = \"cuda:1,1\"\n", ":1", `device is "cuda:1,1"`, `"cuda:all"`},
		"GPU":            {"device = \"gpu\"\n", ":1", `device is "gpu"`, `did you mean "cuda"?`},
		"short, nothing": {"[judge]\nfoo = 3\n", ":2", `unknown key "judge.foo"`, "judge has the keys judge."},
		"nothing near":   {"zzzzzzzzzzzzzzzz = 3\n", ":1", "unknown key", "config show"},
		"type":           {"threads = \"two\"\n", ":1", "threads is a text", "a whole number, such as 0"},
		"syntax":         {"device = \"cpu\"\nthreads = = 2\n", ":2", "", "config show"},
		"duration":       {"[rounds]\nwall_time = \"soon\"\n", "", "not a length of time", ""},
		"word":           {"sandbox = \"week\"\n", ":1", `sandbox is "week"`, `"weak"`},
		"range":          {"[rounds]\nmax = 0\n", ":2", "rounds.max is 0", "from 1"},
		"nan":            {"[rounds]\nheadroom = nan\n", ":2", "rounds.headroom is NaN", "0.95"},
		"baseline":       {"[evaluation]\nbaselines = [\"eager\", \"compiled\"]\n", ":2", `evaluation.baselines has "compiled"`, `did you mean "compile"?`},
		"twice":          {"[evaluation]\nbaselines = [\"eager\", \"eager\"]\n", ":2", `has "eager" twice`, "once"},
		"no eager":       {"[evaluation]\nbaselines = [\"compile\"]\n", ":2", `lacks "eager"`, "always measured"},
		"no baselines":   {"[evaluation]\nbaselines = []\n", ":2", `lacks "eager"`, "always measured"},
		"precision":      {"[evaluation]\nprecision = \"float16\"\n", ":2", `evaluation.precision is "float16"`, `it takes "float32"`},
		"strategy":       {"[rounds]\nstrategy = \"beams\"\n", ":2", `rounds.strategy is "beams"`, `did you mean "beam"?`},
		"built-in":       {"[rounds]\nstrategy = \"react\"\n", ":2", `rounds.strategy is "react", which the built-in Coder cannot do`, "coder.name"},
		"language":       {"[rounds]\nlanguage = \"cuda\"\n[coder]\nname = \"a:b\"\n", ":2", `rounds.language is "cuda"`, `on a CPU`},
		"form":           {"[coder]\nform = \"load_inline\"\n[rounds]\nlanguage = \"cpp\"\n", ":2", `coder.form is "load_inline"`, `"cuda"`},
		"weak":           {"sandbox = \"weak\"\n[coder]\nname = \"a:b\"\n", ":1", `sandbox is "weak", and the Coder is a language model`, `"strict"`},
		"coder":          {"[coder]\nname = \"buildin\"\n", ":2", `coder.name is "buildin"`, `did you mean "builtin"? it takes "builtin", or a model as "provider:model", such as "anthropic:claude-sonnet-5-5"`},
		"composer":       {"[training]\ncomposer = \"combinatoral\"\n", ":2", `training.composer is "combinatoral"`, `did you mean "combinatorial"?`},
		"weak composer":  {"sandbox = \"weak\"\n[training]\ncomposer = \"openai:m\"\n", ":1", `sandbox is "weak", and a language model writes tasks`, `sandbox = "strict"`},
		"in training":    {"[coder]\nname = \"training:x\"\n", ":2", `coder.name is "training:x", a policy in training`, "name another model"},
		"its provider":   {"[llm.providers.training]\nbase_url = \"http://localhost:1/v1\"\n", "", `names a policy in training`, "give yours another name"},
		"judge":          {"[judge]\nname = \"gpt-5\"\n", ":2", `judge.name is "gpt-5"`, `"provider:model"`},
		"no model":       {"[judge]\nname = \"openai:\"\n", ":2", `judge.name is "openai:"`, `"provider:model"`},
		"beam":           {"[beam]\nwidth = 0\n", ":2", "beam.width is 0", "from 1 to 64"},
		"context":        {"[react]\ncontext_tokens = 99\n", ":2", "react.context_tokens is 99", "from 16000"},
		"option":         {"[llm.models.\"openai:gpt-6.1\"]\nmax_tokns = 3\n", ":2", "unknown key `llm.models.\"openai:gpt-6.1\".max_tokns`", "did you mean `llm.models.\"openai:gpt-6.1\".max_tokens`?"},
		"option's table": {"[llm.provider.vllm]\nbase_url = \"http://x/v1\"\n", ":2", `unknown key "llm.provider.vllm.base_url"`, `"llm.providers.vllm.base_url"`},
		"no quotes":      {"[llm.models.openai:gpt-5]\nmax_tokens = 3\n", ":1", "", `[llm.models."openai:gpt-5"]`},
		"option range":   {"[llm.providers.vllm]\n\nconcurrency = -1\n", ":3", "llm.providers.vllm.concurrency is -1", "from 0"},
		"option's kind":  {"[llm.providers.vllm]\nconcurrency = \"two\"\n", ":2", "llm.providers.vllm.concurrency is a text", "it takes a whole number"},
		"too hot":        {"[llm.models.\"a:b\"]\ntemperature = 3.0\n", ":2", "llm.models.\"a:b\".temperature is 3", "from 0 to 2"},
		"no room":        {"[llm.models.\"a:b\"]\nmax_tokens = 9\ncontext_length = 9\n", ":2", "max_tokens is 9", "its context_length is 9"},
		"no model's":     {"[llm.models.gpt-5]\nmax_tokens = 3\n", ":2", "llm.models.gpt-5 names no model", `"provider:model"`},
		"no provider's":  {"[llm.providers.\"a:b\"]\nmax_tokens = 3\n", ":2", "is the name of a model", "[llm.models."},
		"odd name":       {"[llm.providers.\"a b\"]\nmax_tokens = 3\n", ":2", "is a name that nothing can have", "letters"},
		"nothing set":    {"[llm.models.\"a:b\"]\n", "", "llm.models.\"a:b\" sets nothing", "leave the table out"},
		"address":        {"[llm.providers.x]\nbase_url = \"localhost:8000\"\n", ":2", "llm.providers.x.base_url is no address of a server", "http://localhost:8000/v1"},
		"price's day":    {"[llm.prices.\"a:b\"]\nin = 1.0\nout = 2.0\n", ":2", `llm.prices."a:b".as_of is ""`, `"2026-11-23"`},
		"price":          {"[llm.prices.\"a:*\"]\nin = -1.0\nas_of = \"2026-01-01\"\n", ":2", `llm.prices."a:*".in is -1`, "1.25"},
		"many models":    {"[budget.models.\"a:*\"]\nusd = 1.0\n", ":2", `budget.models."a:*" ends in *`, "only a price"},
		"no limit":       {"[budget.models.\"a:b\"]\nusd = 0.0\n", "", `budget.models."a:b".usd is 0`, "give it a limit"},
		"budget":         {"[budget.run]\nusd = -1.0\n", ":2", "budget.run.usd is -1", "0 for no limit"},
		"schedule":       {"[training.schedule]\ncron = \"0 25 * * *\"\n", ":2", `training.schedule.cron is "0 25 * * *", which has "25" as the hour`, "0 to 23"},
		"its fields":     {"[training.schedule]\ncron = \"@daily\"\n", ":2", "is no schedule of 5 fields", `"0 23 * * 1-5"`},
		"never":          {"[training.schedule]\ncron = \"0 23 30 2 *\"\n", ":2", "which never comes: no such day is in any year", "name a day"},
		"no night":       {"sandbox = \"weak\"\n[training.schedule]\ncron = \"0 23 * * *\"\n", ":3", `no night can come: sandbox is "weak"`, `"strict"`},
		"time zone":      {"[training.schedule]\ntime_zone = \"Europe/Berln\"\n", ":2", `training.schedule.time_zone is "Europe/Berln", which is no time zone`, `"Europe/Berlin"`},
		"hours":          {"[training.schedule]\nhours = 0.0\n", ":2", "training.schedule.hours is 0", "above 0"},
		"GPU hours":      {"[training.schedule]\ngpu_hours = nan\n", ":2", "training.schedule.gpu_hours is NaN", "0 for no limit"},
		"provider's":     {"[llm.providers.x]\ntrain_on = true\n", ":2", "llm.providers.x.train_on is set for all models", `[llm.models."provider:model"]`},
		"pattern":        {"[watch]\npatterns = [\"[\"]\n", ":2", "no pattern", "*.py"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Load(write(t, tt.text))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("%v", err)
			}
			if !strings.Contains(e.Where, tt.where) || !strings.Contains(e.Text, tt.says) || !strings.Contains(e.Hint, tt.hint) {
				t.Errorf("where %q, text %q, hint %q", e.Where, e.Text, e.Hint)
			}
		})
	}
	if _, _, err := Load(filepath.Join(t.TempDir(), "none.toml")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
}

// A key that somebody put into the settings is refused, and told to nobody.
func TestAKeyNeverStandsInTheSettings(t *testing.T) {
	const key = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
	for name, text := range map[string]string{
		"as key_env":       "[llm.providers.openai]\nkey_env = \"" + key + "\"\n",
		"a short one":      "[llm.providers.openai]\nkey_env = \"abcDEF123\"\n",
		"as a key":         "[llm.providers.openai]\napi_key = \"" + key + "\"\n",
		"as a model's key": "[llm.models.\"openai:gpt-5\"]\ntoken = \"" + key + "\"\n",
		"in an address":    "[llm.providers.openai]\nbase_url = \"https://me:" + key + "@example.com/v1\"\n",
		"a password":       "[llm.providers.openai]\nbase_url = \"https://me:abcDEF123@example.com/v1\"\n",
		"elsewhere":        "python = \"" + key + "\"\n",
		"as a device":      "device = \"" + key + "\"\n",
		"as a name":        "[llm.models.\"openai:" + key + "\"]\nmax_tokens = 3\n",
		"a Google one":     "[llm.providers.google]\nkey_env = \"AIzaSyA1234567890abcdefghijklmnopqrstuv\"\n",
		"a header":         "[watch]\nfolders = [\"Bearer abcDEF12345\"]\n",
	} {
		_, _, err := Load(write(t, text))
		var e *Error
		if !errors.As(err, &e) || e.Hint != secretHint {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, s := range []string{key, "abcDEF123", "AIzaSy"} {
			if strings.Contains(e.Error()+e.Hint, s) {
				t.Errorf("%s: it is repeated: %v", name, e)
			}
		}
	}
	for _, name := range []string{"OPENAI_API_KEY", "none", "MY_KEY_2"} {
		if _, _, err := Load(write(t, "[llm.providers.openai]\nkey_env = \""+name+"\"\n")); err != nil {
			t.Error(err)
		}
	}
}

// Tables that people name have keys, origins and values as the others.
func TestTablesWithNamesOfPeoplesOwn(t *testing.T) {
	path := write(t, "[llm.providers.lab]\nbase_url = \"http://lab:8000/v1\" # ours\n\n[llm.models.\"lab:qwen-3.5\"]\ntemperature = 0.7\nstream = false\n"+
		"[llm.prices]\n\"lab:*\" = { in = 0.0, out = 0.0, as_of = \"2026-11-01\" }\n[budget.models.'lab:qwen-3.5']\nwall_time = \"1h\"\n")
	c, origins, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		`llm.providers.lab.base_url`: `"http://lab:8000/v1" ` + path + ":2", `llm.models."lab:qwen-3.5".temperature`: "0.7 " + path + ":5",
		`llm.models."lab:qwen-3.5".stream`: "false " + path + ":6", `llm.prices."lab:*".in`: "0 " + path, `llm.prices."ollama:*".in`: "0 default",
		`budget.models."lab:qwen-3.5".wall_time`: `"1h" ` + path + ":10",
	} {
		v, found := Value(c, key)
		if got := Literal(v) + " " + origins[key].String(); !found || got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
	for _, key := range []string{`llm.models."lab:qwen-3.5".max_tokens`, "llm.models", "llm.models.x.stream", "llm.providers.NAME.base_url", `budget.models."lab:qwen-3.5"`} {
		if _, ok := origins[key]; ok {
			t.Errorf("%s has an origin", key)
		}
	}
	if err := Set(&c, `llm.providers.lab.base_url`, "x"); err == nil {
		t.Error("what a copy holds was set")
	}
}

func TestEnvironmentThatIsWrong(t *testing.T) {
	if _, _, err := Read(Source{Env: []string{"KERNELWRIGHT_THREADS=many"}}); err == nil || err.Error() != `KERNELWRIGHT_THREADS: "many" is not a whole number` {
		t.Error(err)
	}
}

// A variable of our names that sets no key is an error, as an unknown key is.
func TestVariablesThatSetNothing(t *testing.T) {
	file := write(t, "[llm.providers.lab]\nbase_url = \"http://lab:8000/v1\"\nkey_env = \"KERNELWRIGHT_LAB_KEY\"\n")
	for name, tt := range map[string]struct{ variable, says, hint string }{
		"mistyped":     {"KERNELWRIGHT_ROUND_MAX=1", "KERNELWRIGHT_ROUND_MAX: unknown variable", "did you mean KERNELWRIGHT_ROUNDS_MAX?"},
		"old section":  {"KERNELWRIGHT_STRATEGY=beam", "KERNELWRIGHT_STRATEGY: unknown variable", "KERNELWRIGHT_ROUNDS_STRATEGY"},
		"nothing near": {"KERNELWRIGHT_ZZZZZZZZZZZZZZZZ=1", "KERNELWRIGHT_ZZZZZZZZZZZZZZZZ: unknown", "unset it"},
		"a line feed":  {"KERNELWRIGHT_A\nB=1", "KERNELWRIGHT_A<U+000A>B: unknown", "unset it"},
		"its value's":  {"KERNELWRIGHT_THREADS=1\n2", `KERNELWRIGHT_THREADS: "1\n2" is not a whole number`, "whole number"},
		"lower case":   {"KERNELWRIGHT_threads=1", "KERNELWRIGHT_threads: unknown", "KERNELWRIGHT_THREADS"},
		"a secret":     {"KERNELWRIGHT_X=sk-proj-abcdefghijklmnopqrstuvwxyz", "KERNELWRIGHT_X: unknown variable", ""},
		"a key":        {"KERNELWRIGHT_THREADS=1", "", ""},
		"the file":     {"KERNELWRIGHT_CONFIG=x", "", ""},
		"a test's":     {"KERNELWRIGHT_TEST_PYTHON=y", "", ""},
		"a soak's":     {"KERNELWRIGHT_SOAK=1", "", ""},
		"a provider's": {"KERNELWRIGHT_LAB_KEY=secret", "", ""},
		"empty":        {"KERNELWRIGHT_ROUND_MAX=", "", ""},
		"another's":    {"KERNELWRIGHTX=1", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Read(Source{File: file, Env: []string{"PATH=z", tt.variable}})
			if tt.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), tt.says) || !strings.Contains(e.Hint, tt.hint) || strings.Contains(err.Error(), "sk-") {
				t.Errorf("%v: %+v", err, e)
			}
		})
	}
}

// All that is wrong is told at once, in the file's order, then the environment's
// and the flags', in words and not in a language's types.
func TestAllThatIsWrongIsToldInOrder(t *testing.T) {
	path := write(t, `device = "gpu"
threads = "two"
[log]
level = 3
[rounds]
headroom = 7
maxx = 3
max = [1, 2]
wall_time = 90
[watch]
folders = "a"
patterns = ["[", 3]
[round]
more = 1
less = 2
[llm.models."a:b"]
temperature = "hot"
stream = 1
[daemon]
grace = "soon"
[budget.run]
usd = true
`)
	_, _, err := Read(Source{
		File: path, Env: []string{"KERNELWRIGHT_ZZZZZZZZZZZZZZZZ=1", "KERNELWRIGHT_DEBOUNCE_MS=3", "KERNELWRIGHT_DAEMON_ATTEMPTS=0"},
		Flags: map[string]string{"rounds.seed": "x"}, FlagNames: map[string]string{"rounds.seed": "--seed"},
	})
	var all Errors
	if !errors.As(err, &all) {
		t.Fatal(err)
	}
	want := []struct{ where, text, hint string }{
		{":1", `device is "gpu"`, `"cuda"`},
		{":2", "threads is a text", "it takes a whole number"},
		{":4", "log.level is a whole number", "it takes a text"},
		{":6", "rounds.headroom is 7", "share"},
		{":7", `unknown key "rounds.maxx"`, `"rounds.max"`},
		{":8", "rounds.max is a list", "whole number"},
		{":9", "rounds.wall_time is a whole number", `"90s"`},
		{":11", "watch.folders is a text", "list of texts"},
		{":12", "watch.patterns is a list", "list of texts"},
		{":14", `unknown key "round.more"`, ""},
		{":17", `llm.models."a:b".temperature is a text`, "it takes a number"},
		{":18", `llm.models."a:b".stream is a whole number`, "true or false"},
		{":20", `daemon.grace: "soon" is not a length of time`, `"90s"`},
		{":22", "budget.run.usd is true or false", "number"},
		{"KERNELWRIGHT_DAEMON_ATTEMPTS", "daemon.attempts is 0", "from 1"},
		{"KERNELWRIGHT_DEBOUNCE_MS", "unknown variable", "KERNELWRIGHT_WATCH_DEBOUNCE_MS"},
		{"KERNELWRIGHT_ZZZZZZZZZZZZZZZZ", "unknown variable", "unset it"},
		{"--seed", `"x" is not a whole number`, "whole number"},
	}
	for i, e := range all {
		if i < len(want) && (!strings.HasSuffix(e.Where, want[i].where) || !strings.Contains(e.Text, want[i].text) || !strings.Contains(e.Hint, want[i].hint)) {
			t.Errorf("%d: %+v, want %+v", i, e, want[i])
		}
		for _, word := range []string{"int", "float", "bool", "string", "struct", "map[", "slice", "incompatible", "destination"} {
			if strings.Contains(e.Text+e.Hint, word) {
				t.Errorf("a type's name: %v", e)
			}
		}
	}
	if len(all) != len(want) {
		t.Errorf("%d errors, want %d: %v", len(all), len(want), all)
	}
	if !strings.HasSuffix(err.Error(), fmt.Sprintf("(and %d more: `kernelwright config check` lists them)", len(want)-1)) {
		t.Error(err)
	}
}

func TestFolders(t *testing.T) {
	env := map[string]string{"HOME": "/home/u"}
	getenv := func(k string) string { return env[k] }
	for dir, want := range map[string]string{"": "/home/u/.local/share/kernelwright", "~/x": "/home/u/x", "/y": "/y"} {
		if got, err := DataFolder(Config{DataDir: dir}, getenv); err != nil || got != want {
			t.Errorf("%q: %q, %v", dir, got, err)
		}
	}
	env["XDG_DATA_HOME"] = "/data"
	if got, _ := DataFolder(Config{}, getenv); got != "/data/kernelwright" {
		t.Error(got)
	}
	if got := FindFile("", getenv); got != "" {
		t.Errorf("found %q", got)
	}
	dir := t.TempDir()
	env["XDG_CONFIG_HOME"] = dir
	want := filepath.Join(dir, "kernelwright", "config.toml")
	if err := os.MkdirAll(filepath.Dir(want), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(want, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := FindFile("", getenv); got != want {
		t.Errorf("found %q", got)
	}
	env[EnvFile] = "/named"
	if got := FindFile("", getenv); got != "/named" {
		t.Errorf("found %q", got)
	}
	if got := FindFile("/asked", getenv); got != "/asked" {
		t.Errorf("found %q", got)
	}
}

func TestLiteralsReadBackAsThemselves(t *testing.T) {
	c := Default()
	var text strings.Builder
	section := ""
	for _, k := range Keys() {
		v, ok := Value(c, k)
		if !ok {
			t.Fatalf("no value for %s", k)
		}
		s, name := cutLast(k)
		if s != section {
			section = s
			text.WriteString("[" + s + "]\n")
		}
		text.WriteString(name + " = " + Literal(v) + "\n")
	}
	again, _, err := Load(write(t, text.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	for _, k := range Keys() {
		a, _ := Value(c, k)
		b, _ := Value(again, k)
		if Literal(a) != Literal(b) {
			t.Errorf("%s: %v became %v", k, a, b)
		}
	}
}

func TestDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-c_]{0,8}`)
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		d := distance(a, b)
		if d != distance(b, a) || (d == 0) != (a == b) || d > max(len(a), len(b)) {
			t.Fatalf("distance(%q, %q) = %d", a, b, d)
		}
	})
	if distance("mxa", "max") != 1 {
		t.Error("a swap is one error")
	}
}
