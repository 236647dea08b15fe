package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// sample is what KernelBench's eval_results.json says of one candidate.
type sample struct {
	SampleID   json.Number `json:"sample_id"`
	Runtime    float64     `json:"runtime"`     // either in the same unit
	RefRuntime float64     `json:"ref_runtime"` // not of every version
}

// runClaims is what it says of a run, by problem.
type runClaims map[string][]sample

// runResults is the file that a run's own evaluation has written.
const runResults = "eval_results.json"

// claimsOf reads what a run's own evaluation claims. What of it cannot be read is
// told, by its place in the file; the rest counts.
func claimsOf(folder string) (claims runClaims, problems []string) {
	path := filepath.Join(folder, runResults)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, []string{"it cannot be read: " + err.Error()}
	case !info.Mode().IsRegular():
		return nil, []string{"it is not a regular file"}
	case info.Size() > maxObject:
		return nil, []string{fmt.Sprintf("it is longer than %d MiB", maxObject>>20)}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, []string{"it cannot be read: " + err.Error()}
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, []string{"it is no JSON object by problem: " + plainly(err)}
	}
	claims = runClaims{}
	var bad []string
	for _, problem := range slices.Sorted(maps.Keys(all)) {
		samples, err := samplesOf(all[problem])
		if err != nil {
			bad = append(bad, problem)
		}
		claims[problem] = samples
	}
	if len(bad) > 0 {
		shown := strings.Join(bad[:min(len(bad), 5)], ", ")
		if len(bad) > 5 {
			shown += ", ..."
		}
		problems = append(problems, fmt.Sprintf("what it says of %d of %d problems is no list of samples with numbers: %s", len(bad), len(all), shown))
	}
	return claims, problems
}

// samplesOf reads what is said of one problem: a list, or, in older versions, its
// only sample. Those that cannot be read are left out.
func samplesOf(raw json.RawMessage) (samples []sample, failed error) {
	var each []json.RawMessage
	if json.Unmarshal(raw, &each) != nil {
		each = []json.RawMessage{raw}
	}
	for _, one := range each {
		var s sample
		if err := json.Unmarshal(one, &s); err != nil {
			failed = err
			continue
		}
		samples = append(samples, s)
	}
	return samples, failed
}

// plainly says an error of JSON without words of this program's language.
func plainly(err error) string {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Sprintf("%v (at byte %d)", err, syntax.Offset)
	}
	return "it is something else"
}

// unread stands for a file of claims that cannot be read, or a part of it.
func unread(folder, problem string) Pair {
	path := filepath.Join(folder, runResults)
	p := unusable(path, problem, "mend it, or take it out: its candidates are evaluated without claims")
	p.instead = kernelwright.NoClaims
	return p
}

// severalLevels reports whether files of runs are of more than one of KernelBench's levels.
func severalLevels(runs []string) bool {
	levels := map[string]bool{}
	for _, path := range runs {
		levels[runFile.FindStringSubmatch(filepath.Base(path))[1]] = true
	}
	return len(levels) > 1
}

// of returns the claim on one candidate, nil where there is none.
func (c runClaims) of(path string) *kernelwright.Claim {
	m := runFile.FindStringSubmatch(filepath.Base(path))
	if m == nil {
		return nil
	}
	for _, s := range c[m[2]] {
		speedup := s.RefRuntime / s.Runtime
		if (s.SampleID.String() == m[3] || m[3] == "") && s.Runtime > 0 && speedup > 0 && !math.IsInf(speedup, 0) {
			return &kernelwright.Claim{Speedup: speedup, Against: "eager"}
		}
	}
	return nil
}
