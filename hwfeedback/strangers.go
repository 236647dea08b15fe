package hwfeedback

import (
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// contains reports whether candidates of this origin may run here. Who asks for
// less than the whole containment answers for what it wrote, and so do we for
// what the built-in Coder writes; nobody does for a language model.
func (e *Evaluator) contains(cand kernelwright.Candidate) error {
	switch cand.Origin {
	case "", "file", "builtin":
		return nil
	}
	if e.options.Sandbox == "strict" {
		return nil // whatever is missing ends its processes before they read it
	}
	return &SetupError{
		Reason: fmt.Sprintf("a candidate by %q is not run in the sandbox %q", cand.Origin, e.options.Sandbox),
		Hint:   `set sandbox = "strict": what a language model writes is run on machines that can contain it`,
	}
}
