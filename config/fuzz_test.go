package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
)

// sentence holds an error to what people can be shown: one line, of a length
// that one reads, without characters that move a cursor.
func sentence(t *testing.T, err error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("not an Error: %v", err)
	}
	for _, s := range []string{e.Text, e.Hint} {
		if !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) || len(s) > 1000 {
			t.Fatalf("no sentence: %q", s)
		}
	}
	if e.Text == "" {
		t.Fatal("an error that says nothing")
	}
}

// asTOML writes settings as `config show` does.
func asTOML(c Config) string {
	var b strings.Builder
	for _, k := range KeysOf(c) {
		v, _ := Value(c, k)
		fmt.Fprintf(&b, "%s = %s\n", k, Literal(v))
	}
	return b.String()
}

// Whatever a file holds, it is settings that survive being shown and read
// again, or an error in one sentence.
func FuzzLoad(f *testing.F) {
	f.Add(kernelwright.DefaultConfig)
	f.Add("[rounds]\nmax = \"x\"\n")
	f.Add("watch.folders = [\"a\\u0007b\", 'c\"d']\ndata_dir = \"\\u007f\"\n")
	f.Add("[rounds]\nwall_time = \"1h30m\"\nheadroom = nan\n")
	f.Add("[llm.models.\"a:b.c\"]\nstream = false\ntop_p = 0.5\n[llm.prices.\"x:*\"]\nin = 0.0\nas_of = \"2026-01-02\"\n[budget.models.'a:b']\ncalls = 3\n")
	f.Add("llm.providers.\"sk-aaaaaaaaaaaaaaaaaaaa\".base_url = \"http://h\"\nbudget.models = {}\n")
	f.Add("[\"a\\nb\"]\n\"c\\td\" = 1\n")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		load := func(text string) (Config, error) {
			path := filepath.Join(dir, "c.toml")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			c, _, err := Load(path)
			return c, err
		}
		c, err := load(text)
		if err != nil {
			sentence(t, err)
			return
		}
		again, err := load(asTOML(c))
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%+v came back as %+v: %v\n%s", c, again, err, asTOML(c))
		}
	})
}

// A text from the environment or a flag is a value that survives being shown
// and read again, or an error in one sentence.
func FuzzSet(f *testing.F) {
	for i, s := range []string{"/data", "cpu", "2", "~", "weak", "a,b", "a\nb,c", "true", "1h", "1e400", "-0", "0x10"} {
		f.Add(uint8(i), s)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		key := Keys()[int(which)%len(Keys())]
		c, origins, err := Read(Source{Env: []string{EnvName(key) + "=" + text}})
		if err != nil {
			sentence(t, err)
			return
		}
		if !utf8.ValidString(text) {
			return // a folder may be named so, but TOML cannot say it
		}
		if origins[key].Kind != "environment" {
			t.Fatalf("%s: %+v", key, origins[key])
		}
		path := filepath.Join(dir, "c.toml")
		if err := os.WriteFile(path, []byte(asTOML(c)), 0o600); err != nil {
			t.Fatal(err)
		}
		again, _, err := Load(path)
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%s=%q came back as %+v: %v", key, text, again, err)
		}
	})
}
