package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/hwfeedback"
)

func TestAFileThatIsNotThereNamesTheNearest(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	for _, name := range []string{"softmax.py", "layer_norm.py", "x.py", "long_name_\xff.py"} {
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"sofmtax.py":    "did you mean softmax.py",
		"layer-norm.py": "did you mean layer_norm.py",
		"matmul.py":     "",
		"y":             "",
		"nowhere/x.py":  "",
		// It would be shown as what was asked for.
		"long_name_\xfe.py": "",
		"softmax.py.txt":    "",
	} {
		code, text, hint := explain(noFile(filepath.Join(folder, name)))
		if code != ExitUsage || hint != want || !strings.HasPrefix(text, "there is no file ") {
			t.Errorf("%s: %d, %q, hint %q", name, code, text, hint)
		}
	}
}

// A name is taken as it stands, whatever bytes it has, and a flag is no name.
func TestNamesOfFilesAreTakenAsTheyStand(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	for _, name := range []string{"g\xff.py", "e\x1bf.py", "{}.py"} {
		if code, said := says(t, "run", name); code != ExitUsage || !strings.Contains(said, "there is no file ") {
			t.Errorf("%q: %d, %s", name, code, said)
		}
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if code, said := says(t, "eval", name, name, "--data-dir", "data"); code != ExitOK || !strings.Contains(said, "it is empty") {
			t.Errorf("%q: %d, %s", name, code, said)
		}
	}
	if code, said := says(t, "run", "x.py", "--out", "--json"); code != ExitUsage || !strings.Contains(said, "--out") {
		t.Errorf("%d, %s", code, said)
	}
}

func TestAnAnswerThatTookTooLongSaysWhoMeasures(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	<-ctx.Done()
	for _, tt := range []struct {
		what string
		err  error
		want string
	}{
		{readingTheReference, &hwfeedback.HeldError{Device: "cpu", Holder: "process 7", Err: ctx.Err()}, "process 7 measures on cpu: give the same command again when it is done, or stop it"},
		{readingTheReference, errors.New("slow"), "where the machine is that slow, raise evaluation.inspect_timeout in the settings; `kernelwright doctor` examines it"},
		{"the verdict", errors.New("slow"), "where the machine is that slow, raise evaluation.timeout in the settings; `kernelwright doctor` examines it"},
	} {
		code, text, hint := explain(overdue(ctx, tt.what, time.Minute, tt.err))
		if code != ExitFailure || text != tt.what+": not there after 1m0s" || hint != tt.want {
			t.Errorf("%d, %q, hint %q", code, text, hint)
		}
	}
	if err := overdue(context.Background(), "the verdict", time.Minute, nil); err != nil {
		t.Error(err)
	}
}
