package judge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/metrics"
	"github.com/kernelwright/kernelwright/prompts"
)

// longestReason is how much of a model's reason to stop is kept where it is not taken.
const longestReason = 500

// held holds a language model's stop against the evidence. It is taken where the
// fastest candidate is at the floor, by the measure at which the rules stop, and
// where neither the rules nor an operator that is still PyTorch's leave anything to
// try. Else the rules' feedback takes its place, and keeps that the model wanted to
// stop. What is no stop is returned as it is.
func held(said, rules kernelwright.Feedback, in kernelwright.JudgeInput) kernelwright.Feedback {
	if said.Kind != kernelwright.Stop || fastest(in).atTheFloor() {
		return said
	}
	if rules.Kind == kernelwright.Stop {
		left, ok := untried(in)
		if rules.Rule != adviceExhausted || !ok {
			return said
		}
		rules = left
	}
	rules.WantedStop = prompts.Line(said.Why, longestReason)
	return rules
}

// fastest is the fastest correct candidate of a run, the one that is judged included.
func fastest(in kernelwright.JudgeInput) view {
	v := view{in.Task, in.Device, in.Current.Candidate, in.Current.Verdict}
	for _, r := range in.History {
		if r.Verdict.Status.OK() && r.Verdict.CandidateMS > 0 && !(v.verdict.CandidateMS > 0 && v.verdict.CandidateMS <= r.Verdict.CandidateMS) {
			v.candidate, v.verdict = r.Candidate, r.Verdict
		}
	}
	return v
}

// untried is the advice to take the longest operator that PyTorch still does into the
// candidate's own code, of those that no advice of the run has named; false where none
// is worth a round.
func untried(in kernelwright.JudgeInput) (kernelwright.Feedback, bool) {
	v := view{in.Task, in.Device, in.Current.Candidate, in.Current.Verdict}
	var top kernelwright.OperatorShare
	for _, o := range v.verdict.Work.Operators {
		if o.Kind == "pytorch" && o.Share >= vendorRest && o.Share > top.Share && !allocates(o.Name) && !named(in.History, o.Name) {
			top = o
		}
	}
	if top.Name == "" {
		return kernelwright.Feedback{}, false
	}
	e := v.evidence(metrics.PyTorchShare, metrics.CustomShare, metrics.VendorShare)
	e["operator_share"] = top.Share
	name := oneLine(top.Name)
	return kernelwright.Feedback{Kind: kernelwright.Optimisation, Rule: "pytorch_share", Evidence: e,
		Bottleneck: fmt.Sprintf("PyTorch's %s takes %s of the time, and writes its result to memory for the next to read.", name, percent(top.Share)),
		Method:     "Take " + name + " into the custom kernel",
		Plan:       "Compute it in the loop that produces or consumes its operand, so that the intermediate tensor is never written.",
	}, true
}

// allocates reports whether an operator of PyTorch only makes room for a result.
func allocates(operator string) bool {
	name := strings.TrimPrefix(operator, "aten.")
	return strings.HasPrefix(name, "empty") || strings.HasPrefix(name, "new_empty")
}

// named reports whether some advice of these rounds names an operator.
func named(rounds []kernelwright.Round, operator string) bool {
	name := oneLine(operator)
	return slices.ContainsFunc(rounds, func(r kernelwright.Round) bool {
		f := r.Feedback
		return f != nil && f.Kind == kernelwright.Optimisation && strings.Contains(" "+f.Bottleneck+" "+f.Method+" ", " "+name+" ")
	})
}
