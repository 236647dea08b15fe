package prompts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

// Each form has an example and words of its own, and each language the words of a work folder.
func TestEachFormIsDescribed(t *testing.T) {
	all, err := LoadTemplates("")
	if err != nil {
		t.Fatal(err)
	}
	for name, view := range map[string]func(Form) any{
		"form":         func(f Form) any { return CoderView{Form: f} },
		"compact_form": func(f Form) any { return string(f) },
	} {
		said := map[string]Form{}
		for _, form := range Forms {
			if all.examples["example_"+string(form)+".py"] == "" {
				t.Errorf("%s has no example", form)
			}
			text, err := all.execute(name, view(form))
			if err != nil || text == "" || said[text] != "" {
				t.Errorf("%s says %q of %s, as of %q: %v", name, text, form, said[text], err)
			}
			said[text] = form
		}
	}
	for _, language := range kernelwright.AllLanguages() {
		if all.parsed.Lookup("react_form_"+string(language)) == nil {
			t.Errorf("%s has no work folder", language)
		}
	}
}

func TestOverrides(t *testing.T) {
	for name, c := range map[string]struct{ file, text, wrong string }{
		"its own words":   {"coder_seed.tmpl", "Look: {{.Reference}}\nBe quick.", ""},
		"windows":         {"coder_seed.tmpl", "\ufeffLook:\r\n{{.Reference}}\r\n", ""},
		"example":         {"example_cuda.py", "class ModelNew: pass\n", ""},
		"does not parse":  {"coder_seed.tmpl", "{{.Reference}} {{if}}", "coder_seed.tmpl: it is no template: coder_seed:1: missing value for if"},
		"unknown field":   {"coder_seed.tmpl", "{{.Reference}} {{.Secret}}", "coder_seed.tmpl: it cannot be filled in: \"coder_seed\" at <.Secret>: can't evaluate field Secret"},
		"in one branch":   {"form.tmpl", "{{if eq .Form \"triton\"}}{{.Nope}}{{end}}", "form.tmpl: it cannot be filled in"},
		"leaves out":      {"coder_correction.tmpl", "{{.Reference}} {{.Candidate}} {{.Feedback}}", "coder_correction.tmpl: it leaves out {{.Verdict}}"},
		"no word on data": {"judge_system.tmpl", "Judge.", "judge_system.tmpl: it leaves out what blocks are"},
		"not a prompt":    {"coder_sead.tmpl", "x", "coder_sead.tmpl: no prompt has a file of that name"},
		"too large":       {"coder_seed.tmpl", strings.Repeat("x", MaxTemplateBytes+1), "coder_seed.tmpl: it is larger than 64 KiB"},
		"no text":         {"coder_seed.tmpl", "\xff{{.Reference}}", "coder_seed.tmpl: it is not UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			at := filepath.Join(folder, "templates")
			if err := os.Mkdir(at, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(at, c.file), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			loaded, err := LoadTemplates(folder)
			if c.wrong != "" {
				if err == nil || !strings.HasPrefix(err.Error(), filepath.Join(at, c.wrong)) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			system, user, err := loaded.Coder(CoderSeed, CoderView{Form: "cuda", ShowExample: true, Reference: Fence("reference", "class Model: pass", 100)})
			own := strings.TrimSpace(strings.ReplaceAll(strings.TrimPrefix(c.text, "\ufeff"), "\r\n", "\n"))
			own, _, _ = strings.Cut(own, "{{")
			if err != nil || !strings.Contains(system+user, strings.TrimSpace(own)) {
				t.Errorf("%v\n%s\n%s", err, system, user)
			}
		})
	}
	t.Run("words for a model that acts", func(t *testing.T) {
		folder := t.TempDir()
		if err := os.Mkdir(filepath.Join(folder, "templates"), 0o700); err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(folder, "templates", "react_system.tmpl")
		view := ReactView{Language: "triton", Margin: "5", Turns: 7, Rounds: 3, Reference: "reference.py", Model: "model_new.py", Loader: "kernelwright.py", TextTools: true, Tools: "[]"}
		for text, want := range map[string]string{
			"Beat it by {{.Margin}} %. {{.Reference}} {{.Model}} {{.Tools}}\n{{template \"react_form_triton\" .}}": "Beat it by 5 %. reference.py model_new.py []\nThe form:",
			"{{.Reference}} {{.Model}}": "react_system.tmpl: it leaves out {{.Tools}}",
			"{{.Reference}} {{.Model}} {{.Tools}} {{if not .Skills}}{{.No}}{{end}}": "react_system.tmpl: it cannot be filled in",
		} {
			if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			said := ""
			loaded, err := LoadTemplates(folder)
			if err == nil {
				said, err = loaded.React(view)
			}
			if err != nil {
				said = strings.TrimPrefix(err.Error(), filepath.Dir(at)+"/")
			}
			if !strings.HasPrefix(said, want) {
				t.Errorf("%q: %q", text, said)
			}
		}
	})
	t.Run("a folder that is none", func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "gone")
		if _, err := LoadTemplates(missing); err == nil || !strings.HasPrefix(err.Error(), missing+": the folder of prompts cannot be read") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a folder of others", func(t *testing.T) {
		if _, err := LoadTemplates(t.TempDir()); err != nil {
			t.Error(err)
		}
	})
}
