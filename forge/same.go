package forge

import (
	"crypto/sha256"

	"github.com/kernelwright/kernelwright"
)

// sourceKey is the same for candidates with the same bytes. Less will not do: a
// program can read its own comments, docstrings and line ends.
type sourceKey [sha256.Size]byte

func keyOf(c kernelwright.Candidate) sourceKey {
	return sha256.Sum256([]byte(string(c.Language) + "\n" + c.Source))
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
