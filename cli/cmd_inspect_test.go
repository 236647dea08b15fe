package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
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
	for level, want := range map[string][]string{
		"1": {"level1/2_a.py", "level1/10_b.py", "level1/100_c.py"}, "2,1": {"level2/1_x.py", "level1/2_a.py", "level1/10_b.py", "level1/100_c.py"},
		"3": nil, "one": nil,
	} {
		got, err := levelFlag{level}.ofLevels([]string{folder})
		for i := range want {
			want[i] = filepath.Join(folder, want[i])
		}
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("level %s: %v: %q", level, err, got)
		}
	}
}

// aDevice inspects by what a reference's text says.
type aDevice struct {
	seen chan string
	lost bool // it fails whatever it is asked for
}

func (aDevice) Device() kernelwright.Device {
	return kernelwright.Device{Kind: kernelwright.CPUDevice}
}

func (d aDevice) Inspect(ctx context.Context, name, source string) (kernelwright.Task, error) {
	d.seen <- name
	switch {
	case d.lost:
		return kernelwright.Task{}, &kernelwright.InfrastructureError{Op: "inspect", Err: errors.New("it is lost")}
	case strings.Contains(source, "waits"):
		<-ctx.Done()
		return kernelwright.Task{}, context.Cause(ctx)
	case strings.Contains(source, "none"):
		return kernelwright.Task{}, &kernelwright.InvalidTaskError{Reason: "It is none.", Hint: "write another"}
	case strings.Contains(source, "breaks"):
		return kernelwright.Task{}, &kernelwright.InfrastructureError{Op: "inspect", Err: errors.New("the device has gone")}
	case strings.Contains(source, "odd"):
		return kernelwright.Task{}, errors.New("nobody knows this")
	case strings.Contains(source, "slow"):
		time.Sleep(50 * time.Millisecond)
	}
	return kernelwright.Task{Name: name, Fingerprint: name, Flags: []kernelwright.TaskFlag{kernelwright.FlagIllConditioned}}, nil
}

// parts makes a text one that may be a task.
const parts = "class Model: pass\nget_inputs = get_init_inputs = list\n"

func TestReferencesAreInspectedOnAllDevices(t *testing.T) {
	folder := t.TempDir()
	files := func(texts ...string) []string {
		var paths []string
		for i, text := range texts {
			paths = append(paths, filepath.Join(folder, fmt.Sprintf("%d.py", i)))
			if err := os.WriteFile(paths[i], []byte("# "+text+"\n"+parts), 0o644); err != nil {
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
		{"all break", 2, []string{"a", "slow breaks", "c", "d"}, "0", "the device has gone"},
		{"no device breaks", 2, []string{"a", "slow odd", "waits", "d", "waits"}, "0", "nobody knows this"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			seen := make(chan string, 100)
			devices := slices.Repeat([]inspector{aDevice{seen: seen}}, tt.devices)
			var got []string
			err := inspectAll(t.Context(), devices, files(tt.texts...), func(string) {}, func(inspector, error) {}, func(f inspected) error {
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
	// When it has ended nobody is at work any more, none was asked twice, and none after it.
	stop := errors.New("the pipe is broken")
	seen := make(chan string, 100)
	err := inspectAll(t.Context(), []inspector{aDevice{seen: seen}, aDevice{seen: seen}}, files("a", "waits", "waits", "slow"), func(string) {}, func(inspector, error) {}, func(inspected) error { return stop })
	close(seen)
	var asked []string
	for name := range seen {
		asked = append(asked, name)
	}
	slices.Sort(asked)
	if !errors.Is(err, stop) || len(slices.Compact(slices.Clone(asked))) != len(asked) || slices.Contains(asked, "3") {
		t.Errorf("got %v, asked of %q", err, asked)
	}
}

// Those that are lost are left, and their references inspected on the one that
// is not, in the references' order. Only where all are it ends.
func TestADeviceThatFailsIsLeft(t *testing.T) {
	folder := t.TempDir()
	var paths []string
	for i := range 6 {
		paths = append(paths, filepath.Join(folder, fmt.Sprintf("%d.py", i)))
		if err := os.WriteFile(paths[i], []byte("# slow\n"+parts), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(chan string, 100)
	for _, tt := range []struct {
		lost []bool
		want string
		said int
	}{
		{[]bool{false}, "0 1 2 3 4 5", 0},
		{[]bool{true, false}, "0 1 2 3 4 5", 1},
		{[]bool{true, false, true}, "0 1 2 3 4 5", 2},
		{[]bool{true}, "", 0},
		{[]bool{true, true, true}, "", 2},
	} {
		var devices []inspector
		for _, lost := range tt.lost {
			devices = append(devices, aDevice{seen, lost})
		}
		var got []string
		var said atomic.Int64
		leave := func(d inspector, err error) {
			said.Add(1)
			if !strings.Contains(err.Error(), "it is lost") || !d.(aDevice).lost {
				t.Errorf("%+v is left: %v", d, err)
			}
		}
		err := inspectAll(t.Context(), devices, paths, func(string) {}, leave, func(f inspected) error {
			got = append(got, f.Fingerprint)
			return nil
		})
		if (err == nil) != (tt.want != "") || (err != nil && !strings.Contains(err.Error(), "it is lost")) {
			t.Errorf("%v: got %v", tt.lost, err)
		}
		// One may never have been asked: the other was done first.
		if n := int(said.Load()); strings.Join(got, " ") != tt.want || n > tt.said || (tt.want == "" && n != tt.said) {
			t.Errorf("%v: got %q, %d left", tt.lost, got, n)
		}
	}
	// Who is interrupted has no device to blame.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if ofTheDevice(ctx, &kernelwright.InfrastructureError{Err: errors.New("ended")}) {
		t.Error("the device is left for an interruption")
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
