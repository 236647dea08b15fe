package coder

import (
	"slices"
	"testing"

	"github.com/kernelwright/kernelwright"
)

// TestALanguageIsARow adds one that compiles when it is called: what a model
// sends in it is told as such.
func TestALanguageIsARow(t *testing.T) {
	before := kernelwright.Languages
	t.Cleanup(func() { kernelwright.Languages = before })
	const toy kernelwright.Language = "toylang"
	text := "import toylang\n\nrelu = toylang.Kernel(\"void relu() {}\")\n\n\nclass ModelNew:\n    pass\n"
	if got := languageOf(text); got != "" {
		t.Fatalf("before it is there it is %q", got)
	}
	kernelwright.Languages = append(slices.Clone(before), kernelwright.LanguageRow{Name: toy, Title: "Toy", Device: kernelwright.CPUDevice, Fence: "python", Module: "toylang"})
	for source, want := range map[string]kernelwright.Language{
		text:                                  toy,
		"from toylang import Kernel\n" + text: toy,
		"import toylanguage\n":                "",
		"import triton\n":                     kernelwright.Triton,
	} {
		if got := languageOf(source); got != want {
			t.Errorf("languageOf(%q) = %q, want %q", source, got, want)
		}
	}
	if !toy.Known() || !toy.RunsOn(kernelwright.CPUDevice) || toy.RunsOn(kernelwright.CUDADevice) || toy.Row().Builtin {
		t.Errorf("its row says %+v", toy.Row())
	}
	if first := kernelwright.LanguagesOn(kernelwright.CPUDevice)[0]; first != kernelwright.CPP {
		t.Errorf("where nobody says which, candidates are in %q", first)
	}
}
