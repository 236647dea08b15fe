// Package audit reads published sets of candidates, each with the reference that
// it stands for, and has them evaluated. It knows where their texts lie and holds few
// of them at a time: a set may have tens of thousands.
package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// Pair is a reference and a candidate, as they were found.
type Pair struct {
	Reference, Candidate Text
	Claim                *kernelwright.Claim

	instead kernelwright.Status // what stands here that is no pair: see unread and leftOut
}

// IsPair tells a pair from what stands among pairs to be told: a file of claims that
// cannot be read, and what was not recognised.
func (p Pair) IsPair() bool { return p.instead == "" }

// Set is what was found at a path.
type Set struct {
	Pairs []Pair
	// Layouts counts the pairs by what they were recognised as, in words.
	Layouts map[string]int

	texts *spool
}

// Count returns how many pairs there are. What is told in the place of one is none.
func (s Set) Count() (n int) {
	for _, p := range s.Pairs {
		if p.IsPair() {
			n++
		}
	}
	return n
}

// First is the set with its first pairs alone, and all that is told and is no pair.
func (s Set) First(pairs int) Set {
	s.Pairs = slices.DeleteFunc(slices.Clone(s.Pairs), func(p Pair) bool {
		if p.IsPair() {
			pairs--
		}
		return p.IsPair() && pairs < 0
	})
	return s
}

// Close gives back what holds the texts of pairs that are not read where they were
// found.
func (s Set) Close() error {
	if s.texts == nil {
		return nil
	}
	return s.texts.close()
}

// NoPairsError says that a path has no pairs, and what was looked for.
type NoPairsError struct{ Reason, Hint string }

func (e *NoPairsError) Error() string { return e.Reason }

// maxPairs is how many one file may have. The largest published set has 31,000. Tests
// take less.
var maxPairs = 1 << 18

func tooMany() error { return fmt.Errorf("one file may have %d pairs", maxPairs) }

func nothing(reason, hint string) error { return &NoPairsError{reason, hint} }

// Layouts is what pairs are recognised by, in words for a hint.
const Layouts = "KernelBench's runs (level_1_problem_3_sample_0_kernel.py), a folder with a reference and its candidates each, or a file of JSON lines or Parquet with reference and candidate"

// Find reads which pairs there are at path: a folder, or a file of JSON. Of
// references it takes the first that fits among those named: files, or folders of
// them. Where none is named it looks beside the candidates, in path, and in the
// folders above it. An error is a *NoPairsError, or says what cannot be read.
func Find(path string, references []string) (Set, error) {
	found := &finder{base: path, seen: map[string]int{}, candidates: map[string]bool{}, set: Set{Layouts: map[string]int{}}}
	info, err := os.Stat(path)
	if err != nil {
		return Set{}, nothing("there is no file or folder "+path, "name a folder or a file of pairs: "+Layouts)
	}
	if found.named, err = indexOf(references); err != nil {
		return Set{}, err
	}
	switch {
	case info.IsDir():
		err = found.folder(path)
	case isJSON(path):
		err = found.json(path)
	case isParquet(path):
		err = found.parquet(path, true)
	default:
		err = nothing(path+" is neither a folder nor JSON nor Parquet", "`kernelwright eval REFERENCE CANDIDATE` evaluates one file")
	}
	if n := len(found.bare); err == nil && len(found.set.Pairs) == 0 && n > 0 {
		err = nothing(fmt.Sprintf("there are no pairs in %s: beside none of its %d files of bare C++ or CUDA (%s) lies a reference, and none defines ModelNew", path, n, found.bare[0]),
			"name their references with --references; a bare source is evaluated where its reference calls the function that it binds, or in a work folder")
	}
	if err == nil && len(found.set.Pairs) == 0 {
		err = found.none(path)
	}
	if err != nil {
		return Set{}, errors.Join(err, found.set.Close())
	}
	if found.left.any() {
		found.set.Pairs = append(found.set.Pairs, found.left.row(path))
	}
	return found.set, nil
}

// finder collects pairs.
type finder struct {
	base  string
	named *index // references that somebody named
	near  *index // those of a KernelBench in base or above it; nil: not looked for yet
	seen  map[string]int
	set   Set

	candidates map[string]bool // folders that have candidates
	bare       []string        // sources beside which there is none
	left       leftOut
	ours       []string // files NAME.best.py, which are no candidates of others
}

// none says that there are no pairs, and what lies there in their place.
func (f *finder) none(path string) error {
	if f.left.any() {
		return nothing(fmt.Sprintf("there are no pairs in %s: %s", path, f.left.said()), f.left.hint()+"; docs/audit.md has the layouts")
	}
	if len(f.ours) > 0 {
		return nothing(fmt.Sprintf("there are no pairs in %s but files that kernelwright wrote, such as %s", path, filepath.Base(f.ours[0])),
			"`kernelwright verify FILE` holds one against its certificate, `kernelwright eval REFERENCE FILE` evaluates it")
	}
	return nothing("there are no pairs of a reference and a candidate in "+path, "it takes "+Layouts)
}

// texts is where what cannot be read again at its place is kept.
func (f *finder) texts() *spool {
	if f.set.texts == nil {
		f.set.texts = &spool{}
	}
	return f.set.texts
}

// add takes a pair, or what stands in the place of one, which has no layout. Its labels tell
// it from every other one.
func (f *finder) add(layout string, p Pair) {
	called := p.Reference.Label + "\n" + p.Candidate.Label
	if f.seen[called]++; f.seen[called] > 1 {
		p.Candidate.Label += fmt.Sprintf(" (%d)", f.seen[called])
	}
	if p.IsPair() {
		f.set.Layouts[layout]++
	}
	f.set.Pairs = append(f.set.Pairs, p)
}

// referenceOf returns the reference of a candidate's file, by its name and its
// folders' names.
func (f *finder) referenceOf(candidate string) Text {
	if f.named.size() > 0 {
		if path := f.named.find(candidate, f.base); path != "" {
			return fileText(path)
		}
		return missing(fmt.Sprintf("none of %d references that were named fits its name", f.named.size()),
			"references are told by their number (level1/3_*.py) or by their name")
	}
	if f.near == nil {
		f.near = nearby(f.base)
	}
	if path := f.near.find(candidate, f.base); path != "" {
		return fileText(path)
	}
	return missing("no reference was found for it", "name the folder of the references with --references, such as KernelBench's")
}

// isJSON reports whether a file's name says that it is JSON.
func isJSON(path string) bool {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".json", ".jsonl", ".ndjson":
		return true
	}
	return false
}
