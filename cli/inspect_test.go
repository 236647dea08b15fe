package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright"
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

// aDevice inspects by what a reference's text says.
type aDevice struct{ seen chan string }

func (d aDevice) Inspect(ctx context.Context, name, source string) (kernelwright.Task, error) {
	d.seen <- name
	switch {
	case strings.Contains(source, "waits"):
		<-ctx.Done()
		return kernelwright.Task{}, context.Cause(ctx)
	case strings.Contains(source, "none"):
		return kernelwright.Task{}, &kernelwright.InvalidTaskError{Reason: "It is none.", Hint: "write another"}
	case strings.Contains(source, "breaks"):
		return kernelwright.Task{}, &kernelwright.InfrastructureError{Op: "inspect", Err: errors.New("the device has gone")}
	case strings.Contains(source, "slow"):
		time.Sleep(50 * time.Millisecond)
	}
	return kernelwright.Task{Name: name, Fingerprint: name, Flags: []kernelwright.TaskFlag{kernelwright.FlagIllConditioned}}, nil
}

func TestReferencesAreInspectedOnAllDevices(t *testing.T) {
	folder := t.TempDir()
	files := func(texts ...string) []string {
		var paths []string
		for i, text := range texts {
			paths = append(paths, filepath.Join(folder, fmt.Sprintf("%d.py", i)))
			if err := os.WriteFile(paths[i], []byte("# "+text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return paths
	}
	say := func(f inspected) string { return f.Fingerprint + f.Reason }
	for _, tt := range []struct {
		name    string
		devices int
		texts   []string
		want    string
		fails   string
	}{
		{"one", 1, []string{"a", "none", "c"}, "0 It is none. 2", ""},
		{"in their order", 3, []string{"slow", "b", "slow", "none", "e", "f"}, "0 1 2 It is none. 4 5", ""},
		{"more devices than references", 4, []string{"a", "slow"}, "0 1", ""},
		{"one breaks", 2, []string{"a", "slow breaks", "waits", "d", "waits", "waits"}, "0", "the device has gone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			seen := make(chan string, 100)
			devices := slices.Repeat([]inspector{aDevice{seen}}, tt.devices)
			var got []string
			err := inspectAll(t.Context(), devices, files(tt.texts...), func(string) {}, func(f inspected) error {
				got = append(got, say(f))
				return nil
			})
			if said := fmt.Sprint(err); (err == nil) != (tt.fails == "") || !strings.Contains(said, tt.fails) {
				t.Errorf("got %v", err)
			}
			if said := strings.Join(got, " "); said != tt.want {
				t.Errorf("got %q", said)
			}
		})
	}
	// When it has ended nobody is at work any more, and each was asked once.
	stop := errors.New("the pipe is broken")
	seen := make(chan string, 100)
	err := inspectAll(t.Context(), []inspector{aDevice{seen}, aDevice{seen}}, files("a", "waits", "waits", "slow"), func(string) {}, func(inspected) error { return stop })
	close(seen)
	var asked []string
	for name := range seen {
		asked = append(asked, name)
	}
	slices.Sort(asked)
	if !errors.Is(err, stop) || !slices.Equal(asked, []string{"0", "1", "2", "3"}) {
		t.Errorf("got %v, asked of %q", err, asked)
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
