package hwfeedback

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

func TestEmbeddedHarness(t *testing.T) {
	h, err := embedded()
	if err != nil {
		t.Fatal(err)
	}
	if len(h.files[forkServerScript]) == 0 {
		t.Errorf("%s is not embedded", forkServerScript)
	}
	// Nothing else may be importable beside a candidate.
	var want []string
	err = filepath.WalkDir("harness", func(at string, e fs.DirEntry, err error) error {
		name := strings.TrimPrefix(at, "harness/")
		ours := name == "kernelwright.py" || strings.HasPrefix(name, "kwharness/")
		if err == nil && !e.IsDir() && ours && !strings.Contains(name, "__pycache__") {
			want = append(want, name)
		}
		return err
	})
	if err != nil || !slices.Equal(h.names, want) {
		t.Errorf("%v; embedded are %v, and not %v", err, h.names, want)
	}
}

func small(t *testing.T, content string) harness {
	t.Helper()
	h, err := loadHarness(fstest.MapFS{
		"harness/a.py": {Data: []byte(content)},
		"harness/b.py": {Data: []byte("b")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// headed has a header that candidates include.
func headed(t *testing.T, header string) harness {
	t.Helper()
	h, err := loadHarness(fstest.MapFS{
		"harness/a.py":            {Data: []byte("a")},
		"harness/include/kw/b.h":  {Data: []byte(header)},
		"harness/include/kw/c.h":  {Data: []byte("c")},
		"harness/protocol.schema": {Data: []byte("s")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestHeadersAreUnpackedAndRepaired(t *testing.T) {
	data, h := t.TempDir(), headed(t, "h")
	dir, err := h.unpack(data)
	if err != nil || !h.intact(dir) {
		t.Fatalf("%s: %v", dir, err)
	}
	at := filepath.Join(dir, "include", "kw", "b.h")
	for _, folder := range []string{filepath.Dir(at), filepath.Dir(filepath.Dir(at))} {
		if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v", folder, err)
		}
	}
	for name, damage := range map[string]func() error{
		"changed": func() error {
			_ = os.Remove(at)
			return os.WriteFile(at, []byte("evil"), 0o644)
		},
		"missing": func() error { return os.Remove(at) },
		"extra":   func() error { return os.WriteFile(filepath.Join(filepath.Dir(at), "z.h"), nil, 0o644) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if h.intact(dir) {
			t.Errorf("%s: taken for whole", name)
		}
		if again, err := h.unpack(data); err != nil || again != dir || !h.intact(dir) {
			t.Errorf("%s: not repaired: %v", name, err)
		}
	}
}

func TestHarnessHash(t *testing.T) {
	one, same, other, header := small(t, "x"), small(t, "x"), small(t, "y"), headed(t, "h")
	if one.hash != same.hash || one.hash == other.hash || headed(t, "h").hash != header.hash || headed(t, "g").hash == header.hash {
		t.Error("the hash does not follow the content")
	}
}

func TestUnpackIsAtomicAndRepairs(t *testing.T) {
	data := t.TempDir()
	h := small(t, "x")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if dir, err := h.unpack(data); err != nil || !h.intact(dir) {
				t.Errorf("%s: %v", dir, err)
			}
		})
	}
	wg.Wait()
	dir, err := h.unpack(data)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "a.py"))
	if err != nil || info.Mode().Perm()&0o222 != 0 {
		t.Errorf("a file can be written: %v, %v", info.Mode(), err)
	}

	for name, damage := range map[string]func() error{
		"changed": func() error {
			_ = os.Remove(filepath.Join(dir, "a.py"))
			return os.WriteFile(filepath.Join(dir, "a.py"), []byte("evil"), 0o644)
		},
		"missing": func() error { return os.Remove(filepath.Join(dir, "a.py")) },
		"extra":   func() error { return os.WriteFile(filepath.Join(dir, "torch.py"), []byte("evil"), 0o644) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if h.intact(dir) {
			t.Errorf("%s: taken for whole", name)
		}
		if again, err := h.unpack(data); err != nil || again != dir || !h.intact(dir) {
			t.Errorf("%s: not repaired: %v", name, err)
		}
	}

	other, err := small(t, "y").unpack(data)
	if err != nil || other == dir || !h.intact(dir) {
		t.Errorf("another version disturbed this one: %v", err)
	}
	entries, err := os.ReadDir(filepath.Join(data, "harness"))
	if err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestUnpackWithoutPermission(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := small(t, "x").unpack(file); err == nil {
		t.Error("no error")
	}
}
