package report

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/kernelwright/kernelwright"
)

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=,@%+~-]+$`)

// Command writes words as a shell reads them.
func Command(words ...string) string {
	said := make([]string, len(words))
	for i, w := range words {
		if said[i] = Line(w); !plainWord.MatchString(w) {
			said[i] = "'" + strings.ReplaceAll(Line(w), "'", `'\''`) + "'"
		}
	}
	return strings.Join(said, " ")
}

// Again is the command that measures a run's certified kernel anew; empty where
// there is none.
func Again(d Data) string {
	r, v, ok := Best(d.Rounds)
	if !ok || v.Status != kernelwright.Certified || d.Run.Path == "" {
		return ""
	}
	const file = "kernel.py"
	words := []string{"kernelwright", "eval", d.Run.Path, file, "--level", "certify", "--again"}
	if d.Run.Device != "" {
		words = append(words, "--device", d.Run.Device)
	}
	return fmt.Sprintf("kernelwright export %d --round %d --out %s && %s", d.Run.ID, r.Index, file, Command(words...))
}

// asksAgain ends a verdict's note that asks for another measurement.
var asksAgain = kernelwright.Shared.AsksAgain

// Note is a note of a verdict's, with the command that it asks for.
func Note(note, again string) string {
	if again == "" || !strings.HasSuffix(note, asksAgain) {
		return note
	}
	return note + ": `" + again + "`"
}
