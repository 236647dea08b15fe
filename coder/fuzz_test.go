package coder

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// Whatever a model sends, there is a candidate that is sound, or a reason; the
// same each time.
func FuzzExtract(f *testing.F) {
	for _, a := range readAnswers(f) {
		if len(a.reply.Text) < 4096 {
			f.Add(a.reply.Text, a.head["language"], a.reply.Stop == llm.StopLength)
		}
	}
	f.Fuzz(func(t *testing.T, text, language string, cut bool) {
		reply := llm.Reply{Text: text, Stop: llm.StopEnd}
		if cut {
			reply.Stop = llm.StopLength
		}
		got, bad := extract(reply, kernelwright.Language(language))
		again, badAgain := extract(reply, kernelwright.Language(language))
		if got != again || (bad == nil) != (badAgain == nil) || (bad != nil && *bad != *badAgain) {
			t.Fatalf("%+v %v, then %+v %v", got, bad, again, badAgain)
		}
		if bad != nil {
			if bad.reason == "" || bad.hint == "" || strings.Contains(bad.reason, "\n") || len(bad.reason) > 300 {
				t.Fatalf("%+v", bad)
			}
			return
		}
		if !strings.Contains(got.source, "ModelNew") || !strings.HasSuffix(got.source, "\n") || !utf8.ValidString(got.source) || strings.Contains(got.source, "\r") {
			t.Fatalf("%q", got.source)
		}
		if got.language == "" || (language != "" && string(got.language) != language) {
			t.Fatalf("%q where %q was asked for", got.language, language)
		}
		if _, ok := kernelwright.ParseSchedule(got.source); ok {
			t.Fatalf("a schedule that nobody turns: %q", got.source)
		}
		if strings.Contains(got.note, "\n") || len(got.note) > maxNoteBytes+4 {
			t.Fatalf("note %q", got.note)
		}
	})
}
