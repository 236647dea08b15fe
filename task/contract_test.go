package task

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kernelwright/kernelwright"
)

func TestReadReferenceRefusesWhatDefinesNoTask(t *testing.T) {
	for source, reason := range map[string]string{
		"class Model: pass\ndef get_inputs(): pass\ndef get_init_inputs(): pass\n":  "",
		"from torch.nn import Linear as Model\nget_inputs = get_init_inputs = list": "",
		"from tasks import *\n":         "",
		"exec(open('x').read())\n":      "",
		"globals()['Mod' + 'el'] = 1\n": "",
		"int main() { return 0; }\n":    "the file defines no Model, no get_inputs() and no get_init_inputs()",
		"class ModelNew: pass\ndef get_inputs(): pass\ndef get_init_inputs(): pass\n": "the file defines no Model",
		"class Model: pass\ndef get_inputs2(): pass\n":                                "the file defines no get_inputs() and no get_init_inputs()",
		"": "it is empty",
	} {
		path := filepath.Join(t.TempDir(), "a.py")
		if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := ReadReference(path)
		var bad *kernelwright.InvalidTaskError
		switch {
		case reason == "" && err != nil:
			t.Errorf("%q: %v", source, err)
		case reason != "" && (!errors.As(err, &bad) || bad.Reason != reason || bad.Hint != kernelwright.Shared.TaskForm):
			t.Errorf("%q: got %v, not %q", source, err, reason)
		}
	}
}

func TestReadModelNewRefusesWhatNeverNamesIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.py")
	for source, reason := range map[string]string{
		"class ModelNew: pass\n": "", "int main() {}\n": "the source defines no class ModelNew",
	} {
		if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := ReadModelNew(path)
		var bad *kernelwright.InvalidTaskError
		switch {
		case f.Source != source:
			t.Errorf("%q: its text is %q", source, f.Source)
		case reason == "" && err != nil, reason != "" && (!errors.As(err, &bad) || bad.Reason != reason || bad.Hint != candidates):
			t.Errorf("%q: got %v, not %q", source, err, reason)
		}
	}
}
