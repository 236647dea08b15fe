package cli

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestReferencesAreReadInTheOrderOfTheirNumbers(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"level1/10_b.py", "level1/2_a.py", "level1/100_c.py", "level2/1_x.py", "level1/.hidden.py", "__pycache__/x.py", "notes.txt", ".git/y.py"} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	single := filepath.Join(folder, "notes.txt")
	got, err := references([]string{single, folder})
	want := []string{single}
	for _, name := range []string{"level1/2_a.py", "level1/10_b.py", "level1/100_c.py", "level2/1_x.py"} {
		want = append(want, filepath.Join(folder, name))
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v: %q", err, got)
	}
	for _, bad := range []string{filepath.Join(folder, "none"), filepath.Join(folder, ".git", "none"), t.TempDir()} {
		if _, err := references([]string{bad}); err == nil {
			t.Errorf("%s is no folder of references", bad)
		}
	}
}

func TestNumbered(t *testing.T) {
	ordered := []string{"", "01_b", "1", "1_a", "1_b", "2", "10", "99999999999999999999999", "a1", "a2", "a10"}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := numbered(a, b); (got < 0) != (i < j) {
				t.Errorf("%q and %q: %d", a, b, got)
			}
		}
	}
}

func TestOperatorsInShort(t *testing.T) {
	for want, given := range map[string][]string{
		"":                                 {},
		"mm, relu":                         {"aten.mm", "aten.relu", "aten.mm"},
		"a, b, c, d and 2 more":            {"aten.a", "aten.b", "aten.c", "aten.d", "aten.e", "aten.f"},
		"convolution, custom::op, softmax": {"aten.convolution", "custom::op", "aten.softmax"},
	} {
		if got := operatorsInShort(given); got != want {
			t.Errorf("%q becomes %q", given, got)
		}
	}
}
