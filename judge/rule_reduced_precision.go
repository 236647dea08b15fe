package judge

import (
	"fmt"
	"regexp"
)

// halfWords are how sources ask for less than float32.
var halfWords = regexp.MustCompile(`(?i)\b(_Float16|__fp16|__half\w*|half2|__nv_bfloat16\w*|bfloat16|__bf16|float16|tf32|allow_tf32)\b|\.half\(`)

// A bound is a few units in the last place of float32, 1e-7 to 1e-6 of the
// value. TF32 and half keep 11 bits (5e-4), bfloat16 8 (4e-3): an error of
// this many bounds, everywhere alike, is what they leave.
const (
	halfLeast = 50
	halfMost  = 50000
)

// reducedPrecision finds arithmetic in fewer bits than the task is held to.
func reducedPrecision(v view) (finding, bool) {
	failed := v.failed()
	if len(failed) == 0 {
		return finding{}, false
	}
	least, most := 0.0, 0.0
	plain := 0
	base := false
	for _, f := range failed {
		switch f.Name {
		case "base", "scaled_up", "scaled_down", "negated":
			x := overBound(f)
			if plain == 0 || x < least {
				least = x
			}
			most = max(most, x)
			plain++
			base = base || f.Name == "base"
		}
	}
	word := halfWords.FindString(v.candidate.Source)
	// Without a word for it in the source, the pattern has to be plain: the
	// same relative error at every scale.
	alike := plain >= 3 && least >= halfLeast && most <= halfMost && most <= 8*least
	if !base || (word == "" && !alike) || (word != "" && (most > halfMost || least == 0)) {
		return finding{}, false
	}
	f, factor := worst(failed)
	why := fmt.Sprintf("The error is %.3g where the bound is %.3g (%.0f times as much), by about the same factor at every scale of the input: what fewer bits of mantissa leave.", f.MaxError, f.MaxBound, factor)
	if word != "" {
		why += fmt.Sprintf(" The source says %q.", oneLine(word))
	}
	return finding{
		issue:    fmt.Sprintf("The arithmetic is less precise than %s.", orFloat32(v.verdict.Correctness.Precision)),
		why:      why,
		fix:      "Load, multiply and accumulate in float32 throughout, and use no reciprocal or exponential approximation.",
		evidence: familyEvidence(failed),
		moves:    []move{{"approx", toLeast}, {"vector", toLeast}},
	}, true
}

func orFloat32(precision string) string {
	if precision == "" {
		return "float32"
	}
	return precision
}
