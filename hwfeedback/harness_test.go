package hwfeedback

import (
	"os"
	"path/filepath"
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
	for _, name := range []string{"forkserver.py", "protocol.py", "sandbox.py", "protocol.schema.json"} {
		if len(h.files[name]) == 0 {
			t.Errorf("%s is not embedded", name)
		}
	}
	for _, name := range h.names {
		if strings.HasPrefix(name, "test_") || strings.HasPrefix(name, "conftest") {
			t.Errorf("%s is embedded", name)
		}
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

func TestHarnessHash(t *testing.T) {
	one, same, other := small(t, "x"), small(t, "x"), small(t, "y")
	if one.hash != same.hash || one.hash == other.hash {
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
