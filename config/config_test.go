package config

import (
	"errors"
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
		"mistyped":      {"[rounds]\nmaxx = 3\n", ":2", `unknown key "rounds.maxx"`, `"rounds.max"`},
		"wrong section": {"debounce_ms = 3\n", ":1", `unknown key "debounce_ms"`, `"watch.debounce_ms"`},
		"unknown table": {"\n[round]\nmax = 3\n", ":3", `unknown key "round`, `"rounds.max"`},
		"a table's":     {"round = 3\n", ":1", `unknown key "round"`, "rounds.max, "},
		"GPUs":          {"device = \"cuda:0,x\"\n", ":1", `device is "cuda:0,x"`, `"cuda:0,1" for two`},
		"GPU twice":     {"device = \"cuda:1,1\"\n", ":1", `device is "cuda:1,1"`, `"cuda:all"`},
		"GPU":           {"device = \"gpu\"\n", ":1", `device is "gpu"`, `did you mean "cuda"?`},
		"nothing near":  {"zzzzzzzzzzzzzzzz = 3\n", ":1", "unknown key", "config show"},
		"type":          {"threads = \"two\"\n", ":1", "threads", "config show"},
		"syntax":        {"device = \"cpu\"\nthreads = = 2\n", ":2", "", "config show"},
		"duration":      {"[rounds]\nwall_time = \"soon\"\n", "", "not a length of time", ""},
		"word":          {"sandbox = \"week\"\n", ":1", `sandbox is "week"`, `"weak"`},
		"range":         {"[rounds]\nmax = 0\n", ":2", "rounds.max is 0", "from 1"},
		"nan":           {"[rounds]\nheadroom = nan\n", ":2", "rounds.headroom is NaN", "0.95"},
		"baseline":      {"[evaluation]\nbaselines = [\"eager\", \"compiled\"]\n", ":2", `evaluation.baselines has "compiled"`, `did you mean "compile"?`},
		"twice":         {"[evaluation]\nbaselines = [\"eager\", \"eager\"]\n", ":2", `has "eager" twice`, "once"},
		"no eager":      {"[evaluation]\nbaselines = [\"compile\"]\n", ":2", `lacks "eager"`, "always measured"},
		"no baselines":  {"[evaluation]\nbaselines = []\n", ":2", `lacks "eager"`, "always measured"},
		"precision":     {"[evaluation]\nprecision = \"float16\"\n", ":2", `evaluation.precision is "float16"`, `it takes "float32"`},
		"pattern":       {"[watch]\npatterns = [\"[\"]\n", ":2", "no pattern", "*.py"},
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

func TestEnvironmentThatIsWrong(t *testing.T) {
	if _, _, err := Read(Source{Env: []string{"KERNELWRIGHT_THREADS=many"}}); err == nil || err.Error() != `KERNELWRIGHT_THREADS: "many" is not a whole number` {
		t.Error(err)
	}
	notes := Strays([]string{"KERNELWRIGHT_ROUND_MAX=1", "KERNELWRIGHT_CONFIG=x", "KERNELWRIGHT_TEST_PYTHON=y", "KERNELWRIGHT_THREADS=1", "PATH=z"})
	if len(notes) != 1 || !strings.Contains(notes[0], "KERNELWRIGHT_ROUNDS_MAX") {
		t.Error(notes)
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
