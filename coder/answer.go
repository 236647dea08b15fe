package coder

import (
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// signature ends the docstring of a candidate of the built-in Coder.
const signature = `, written by kernelwright's built-in Coder."`

// Answer returns a candidate of the built-in Coder as a language model answers: its
// note as a sentence, then the file. The docstring and the comment that states the
// schedule are left out: a model's answer has neither.
func Answer(c kernelwright.Candidate) string {
	source := withoutSchedule(c.Source)
	if head, rest, _ := strings.Cut(source, "\n"); strings.HasPrefix(head, `"`) && strings.HasSuffix(head, signature) {
		source = rest
	}
	return strings.TrimSuffix(c.Note, ".") + ".\n```python\n" + strings.TrimRight(source, " \t\n") + "\n```\n"
}

// Read returns the candidate in an answer, as Model.Propose finds it in a reply. Where
// there is none the error is a *kernelwright.UnusableError. The language may be empty.
func Read(answer string, language kernelwright.Language, origin string) (kernelwright.Candidate, error) {
	return read(llm.Reply{Text: answer, Stop: llm.StopEnd}, language, origin)
}

func read(reply llm.Reply, language kernelwright.Language, origin string) (kernelwright.Candidate, error) {
	found, bad := extract(reply, language)
	if bad != nil {
		return kernelwright.Candidate{}, &kernelwright.UnusableError{Answer: kept(reply.Text), Reason: bad.reason, Hint: bad.hint, Origin: origin}
	}
	return kernelwright.Candidate{Source: found.source, Language: found.language, Origin: origin, Note: found.note}, nil
}
