package rl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recording is a Python that writes its environment down and answers as each of its callers
// expects, but for pip, which fails.
func recording(t *testing.T) (python, into string) {
	t.Helper()
	python, into = filepath.Join(t.TempDir(), "python"), filepath.Join(t.TempDir(), "environment")
	script := "#!/bin/sh\necho \"called $*\" >>" + into + "\nenv >>" + into + `
case "$*" in
*" pip "*) exit 1 ;;
*cache_tag*) echo cpython-312 ;;
*) echo '{"missing": []}' ;;
esac
`
	if err := os.WriteFile(python, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return python, into
}

// Neither pip nor what asks a Python what it has gets a secret; pip gets its own settings.
func TestSecretsStayHere(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-secret")
	t.Setenv("PIP_INDEX_URL", "https://index.example/simple")
	t.Setenv("HTTPS_PROXY", "http://proxy.example")
	t.Setenv("PYTHONPATH", "/own/packages")
	python, into := recording(t)
	if _, err := Open(t.Context(), Options{DataDir: t.TempDir(), Interpreter: python}); err == nil {
		t.Error("pip failed, and that is not said")
	}
	if p, err := Open(t.Context(), Options{DataDir: t.TempDir(), Python: python}); err != nil || len(p.Path) != 2 || p.Path[1] != "/own/packages" {
		t.Errorf("%v: %+v", err, p)
	}
	text, err := os.ReadFile(into)
	if err != nil {
		t.Fatal(err)
	}
	said := string(text)
	if n := strings.Count(said, "called "); n != 3 {
		t.Errorf("%d calls: %s", n, said)
	}
	if strings.Contains(said, "sk-secret") {
		t.Errorf("a key went out: %s", said)
	}
	for what, n := range map[string]int{"PIP_INDEX_URL=https://index.example/simple": 1, "HTTPS_PROXY=http://proxy.example": 1, "PYTHONPATH=/own/packages": 1} {
		if got := strings.Count(said, what); got != n {
			t.Errorf("%s is there %d times: %s", what, got, said)
		}
	}
}
