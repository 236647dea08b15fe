package cli

import (
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

// TestStepsOnAGPU parses the command lines with which bench/gpu.py calls this
// program, on machines that are dear to find a wrong flag on.
func TestStepsOnAGPU(t *testing.T) {
	var file struct {
		Step []struct{ Name, Command string }
	}
	if _, err := toml.DecodeFile(filepath.Join("..", "bench", "gpu.toml"), &file); err != nil {
		t.Fatal(err)
	}
	placeholder := regexp.MustCompile(`\{\w+\}`)
	folder, found := t.TempDir(), 0
	for _, s := range file.Step {
		_, line, ours := strings.Cut(s.Command, "{program} ")
		if !ours {
			continue
		}
		found++
		line = strings.ReplaceAll(strings.TrimSuffix(line, "'"), "{here}", "--data-dir "+folder+" --python python3 --device cuda:1")
		line = strings.ReplaceAll(line, "bench/", "../bench/")
		words := strings.Fields(placeholder.ReplaceAllString(line, folder))
		if err := Run(t.Context(), append(words, "--help"), strings.NewReader(""), io.Discard, io.Discard); err != nil {
			t.Errorf("%s: %q: %v", s.Name, words, err)
		}
	}
	if found < 5 {
		t.Errorf("bench/gpu.toml calls this program in %d steps", found)
	}
}
