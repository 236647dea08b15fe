package forge

import (
	_ "embed" // the loader
	"fmt"
	"strings"
	"sync"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
)

//go:embed react_loader.py
var loaderText string

// maxReferenceBytes is how much of a reference the first message shows; the rest
// can be read.
const maxReferenceBytes = 32 << 10

// ownTemplates are the program's, parsed once.
var ownTemplates = sync.OnceValues(func() (*prompts.Templates, error) { return prompts.LoadTemplates("") })

// opening is what the model is told first, in few words or in all.
func (a *actor) opening(compact bool) ([]llm.Message, error) {
	templates := a.Prompts
	if templates == nil {
		var err error
		if templates, err = ownTemplates(); err != nil {
			return nil, err
		}
	}
	system, err := templates.React(prompts.ReactView{
		Margin: fmt.Sprintf("%.0f", 100*compileMargin), Turns: a.settings.React.Turns, Rounds: a.settings.Rounds, Language: a.language(),
		Compact: compact, Reference: referenceFile, Model: modelFile, Loader: loaderFile, Skills: len(a.skills()) > 0, TextTools: a.words, Tools: listed(a.told(compact), compact),
	})
	if err != nil {
		return nil, fmt.Errorf("make the prompt of react: %w", err)
	}
	return []llm.Message{{Role: llm.System, Text: system}, {Role: llm.User, Text: a.taskText(compact)}}, nil
}

func (a *actor) taskText(compact bool) string {
	var b strings.Builder
	t, d := a.task, a.Device
	fmt.Fprintf(&b, "The task is %s, in %s:\n", oneLine(t.Name, 100), referenceFile)
	b.WriteString(fenced(bounded(t.Source, maxReferenceBytes)))
	if len(t.Source) > maxReferenceBytes {
		fmt.Fprintf(&b, "\n(the first %d of %d bytes: read shows the rest)", maxReferenceBytes, len(t.Source))
	}
	if compact {
		fmt.Fprintf(&b, "\n%s\nBegin.", prompts.Brief(t, d))
		return b.String()
	}
	fmt.Fprintf(&b, "\n\nThe device is %s (%s)", oneLine(d.Name, 100), d)
	for _, f := range []struct {
		form  string
		value float64
	}{
		{"%.0f GB/s of memory, read and written", d.Ceilings.MemoryGBs}, {"%.0f GB/s of cache", d.Ceilings.CacheGBs},
		{"%.0f GFLOP/s in float32", d.Ceilings.FP32GFLOPs}, {"%.1f us a call", d.Ceilings.CallUS},
	} {
		if f.value > 0 {
			fmt.Fprintf(&b, ", "+f.form, f.value)
		}
	}
	b.WriteString(", as measured.")
	if t.LeastBytes > 0 {
		fmt.Fprintf(&b, " A forward has to move %d bytes at least and does %d operations.", t.LeastBytes, t.Operations)
	}
	for _, n := range t.Notes {
		fmt.Fprintf(&b, "\n- %s", oneLine(n, 300))
	}
	fmt.Fprintf(&b, "\n\nBegin.")
	return b.String()
}
