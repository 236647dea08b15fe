package forge

import (
	"crypto/sha256"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// sourceKey is the same for candidates with the same source.
type sourceKey [sha256.Size]byte

func keyOf(c kernelwright.Candidate) sourceKey {
	return sha256.Sum256([]byte(string(c.Language) + "\n" + normalise(c.Source)))
}

// sources knows the first of the rounds with each source.
type sources struct {
	first map[sourceKey]int
	read  int // so many rounds
}

// duplicate returns the first of the rounds before an index that has the same
// source, or nil.
func (l *loop) duplicate(c kernelwright.Candidate, before int) *kernelwright.Round {
	if l.sources.first == nil || l.sources.read > len(l.rounds) {
		l.sources = sources{first: map[sourceKey]int{}}
	}
	for ; l.sources.read < len(l.rounds); l.sources.read++ {
		key := keyOf(l.rounds[l.sources.read].Candidate)
		if _, ok := l.sources.first[key]; !ok {
			l.sources.first[key] = l.sources.read
		}
	}
	if i, ok := l.sources.first[keyOf(c)]; ok && i < before {
		return &l.rounds[i]
	}
	return nil
}

// schedulePrefix opens the comment with a candidate's schedule.
var schedulePrefix, _, _ = strings.Cut(kernelwright.Schedule{}.Comment(), "{")

// normalise drops what cannot change what a source does: line ends, space at
// the end of lines and of the text, and the schedule comment. No more than
// that: a line that opens with # is a comment in Python and a pragma in the
// C++ between quotes. The evaluator's cache knows the finer equality.
func normalise(source string) string {
	var b strings.Builder
	for line := range strings.Lines(source) {
		if strings.HasPrefix(line, schedulePrefix) {
			continue
		}
		b.WriteString(strings.TrimRight(line, " \t\r\n"))
		b.WriteByte('\n')
	}
	return strings.TrimRight(b.String(), "\n")
}
