package audit

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/kernelwright/kernelwright"
)

// runClaims is what KernelBench's eval_results.json says of a run: by problem, a
// list of samples.
type runClaims map[string][]struct {
	SampleID   json.Number `json:"sample_id"`
	Runtime    float64     `json:"runtime"`     // either in the same unit
	RefRuntime float64     `json:"ref_runtime"` // not of every version
}

// claimsOf reads what a run's own evaluation claims; nothing where it claims
// nothing that can be read.
func claimsOf(folder string) runClaims {
	text, err := os.ReadFile(filepath.Join(folder, "eval_results.json"))
	if err != nil || len(text) > maxObject {
		return nil
	}
	var claims runClaims
	if json.Unmarshal(text, &claims) != nil {
		return nil
	}
	return claims
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
		if (s.SampleID.String() == m[3] || m[3] == "") && s.Runtime > 0 && s.RefRuntime > 0 {
			return &kernelwright.Claim{Speedup: s.RefRuntime / s.Runtime, Against: "eager"}
		}
	}
	return nil
}
