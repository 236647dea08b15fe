package tasks

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/prompts"
	"github.com/kernelwright/kernelwright/store"
)

// Writer is a language model that writes tasks in the place of the combinatorial
// composer. What it writes is foreign code: it is read, and run in the sandbox
// alone.
type Writer struct {
	Model   llm.Model
	Prompts *prompts.Templates
}

// writerAgent is what its calls are recorded and paid for as.
const writerAgent = "composer"

// write has the model put the operators of a composed task together in its own way.
func (w *Writer) write(ctx context.Context, s Settings, d *draft, estimateMS float64, dtype string) {
	example := d.source
	d.source, d.task.Origin = "", originWritten
	system, user, err := w.Prompts.Composer(prompts.ComposerView{
		Operators: strings.Join(d.task.Operators, ", "), DType: dtype, Low: span(s.LowMS), High: span(s.HighMS), Estimate: span(estimateMS),
		Example: prompts.Fence("a file in this form", example, prompts.MaxReferenceBytes),
	})
	if err != nil {
		d.err = fmt.Errorf("make the prompt of a task: %w", err)
		return
	}
	reply, err := w.Model.Generate(ctx, llm.Request{
		Key:      llm.Key{Agent: writerAgent, Seq: int(d.index)},
		Messages: []llm.Message{{Role: llm.System, Text: system, Shared: len(system)}, {Role: llm.User, Text: user}},
	})
	if err != nil {
		d.err = err
		return
	}
	d.source, d.reason = written(reply)
	d.task.Operators, d.task.Kinds, d.task.Primitives = nil, nil, nil // its text says what it has
}

func span(ms float64) string { return fmt.Sprintf("%.3g ms", ms) }

// fenced is a block of code between fences.
var fenced = regexp.MustCompile("(?ms)^[ \t]*(```+|~~~+)[^\n]*\n(.*?)^[ \t]*(```+|~~~+)[ \t]*$")

// written returns the reference in an answer, or why there is none: the last whole
// block with a Model, or all of an answer without blocks.
func written(reply llm.Reply) (source, reason string) {
	switch reply.Stop {
	case llm.StopLength, llm.StopContext:
		return "", "not composed: the answer is cut off"
	case llm.StopFiltered, llm.StopRefused:
		return "", "not composed: the model refuses"
	}
	text := strings.ReplaceAll(reply.Text, "\r\n", "\n")
	found := []string{text}
	if blocks := fenced.FindAllStringSubmatch(text, -1); len(blocks) > 0 {
		found = nil
		for _, b := range blocks {
			found = append(found, b[2])
		}
	}
	for _, source := range slices.Backward(found) {
		if strings.Contains(source, "class Model(") && strings.Contains(source, "def get_inputs(") {
			if len(source) > prompts.MaxReferenceBytes {
				return "", "not composed: the answer is too long"
			}
			return strings.TrimSpace(source) + "\n", ""
		}
	}
	return "", "not composed: the answer holds no reference"
}

// outsideSplit returns why a task whose text nobody composed here cannot be in its
// split for the kinds that it has, or "". aten is what its forward ran.
func outsideSplit(split store.Split, kinds, aten, held []string) string {
	has := slices.ContainsFunc(kinds, func(kind string) bool { return slices.Contains(held, kind) }) ||
		slices.ContainsFunc(aten, func(name string) bool {
			return slices.Contains(held, strings.ReplaceAll(strings.ToLower(bare(name)), "_", ""))
		})
	switch {
	case has && split != store.KindsSplit:
		return "has an operator kind that is never trained on"
	case !has && split == store.KindsSplit:
		return "has no operator kind that is held out"
	}
	return ""
}
