package report

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/score"
)

// AuditRow is what an audit says of one pair: an object a line with --json.
type AuditRow struct {
	Reference string              `json:"reference"`
	Candidate string              `json:"candidate"`
	Status    kernelwright.Status `json:"status"`
	Reason    string              `json:"reason"`
	Hint      string              `json:"hint,omitempty"`
	// Group is what the summary counts it under.
	Group          string   `json:"group"`
	WrongOn        *string  `json:"wrong_on"` // the family of inputs
	Claimed        *float64 `json:"claimed"`  // the speedup that it was published with
	ClaimedAgainst string   `json:"claimed_against,omitempty"`
	// Measured is against the baseline that the claim names, else eager, and Speedup
	// against the fastest baseline.
	Measured    *kernelwright.Speedup `json:"measured"`
	Speedup     *kernelwright.Speedup `json:"speedup"`
	Reaches     *bool                 `json:"reaches_claim,omitempty"` // absent where nothing was claimed, or nothing can be said of it
	CandidateMS *float64              `json:"candidate_ms,omitempty"`
	Baselines   map[string]float64    `json:"baselines"` // name to milliseconds
	Work        *AuditWork            `json:"work,omitempty"`
	Counted     *bool                 `json:"counted,omitempty"` // false where PyTorch does the work, or there is none, or policy rejects it
	// Of a candidate that policy rejects, as it would be without it, with how right it is.
	Explained   *kernelwright.Explanation       `json:"explained,omitempty"`
	Correctness *kernelwright.CorrectnessReport `json:"correctness,omitempty"`
	// FromBare is whether it was published as C++ or CUDA, and ModelNew is ours.
	FromBare bool `json:"from_bare,omitempty"`
	// KernelBench is whether its own comparison would have passed the candidate.
	KernelBench *bool                   `json:"kernelbench,omitempty"`
	Assumes     []string                `json:"assumes,omitempty"`
	Flags       []kernelwright.TaskFlag `json:"flags,omitempty"`
	Evaluated   string                  `json:"judged,omitempty"` // when; absent where the machine failed

	place int // of Group in auditGroups
}

// AuditWork is the shares of a candidate's time by who did the work.
type AuditWork struct {
	Custom  float64 `json:"custom"`
	Vendor  float64 `json:"vendor"`
	PyTorch float64 `json:"pytorch"`
}

// The groups of pairs, in the order of the summary: word, and what people read.
var auditGroups = []struct{ name, title string }{
	{"faster", "right, and faster than the fastest baseline"},
	{"no_difference", "right, no measurable difference"},
	{"undecided", "right, too noisy to tell whether faster"},
	{"slower", "right, and slower than the fastest baseline"},
	{"not_timed", "right, not timed"},
	{"rewrite", "right, a rewrite in PyTorch: not counted"},
	{"degenerate", "right, and its reference computes nothing: not counted"},
	{"wrong", "wrong in shape, dtype or memory"}, // where no family is named
	{"cheated", "deceives whoever measures it"},
	{"rejected", "breaks the policy"},
	{"build_failed", "does not build"},
	{"not_python", "no readable Python that defines ModelNew"},
	{"missing_package", "needs a package that is not here"},
	{"crashed", "crashes"},
	{"timed_out", "hangs, or takes too long"},
	{"needs_gpu", "needs a GPU"},
	{"no_candidate", "no candidate to evaluate"},
	{"invalid", "its reference is invalid"},
	{"no_reference", "no reference was found"},
	{"no_claims", "no pair: a file of claims that cannot be read"},
	{"unrecognised", "left out, no pair: neither a reference nor a candidate"},
	{"not_judged", "not evaluated: the machine failed"},
}

func groupPlace(name string) int {
	for i, g := range auditGroups {
		if g.name == name {
			return i
		}
	}
	return len(auditGroups) - 1
}

var (
	missingPackage = regexp.MustCompile(`No module named '([\w.-]+)'`)
	wrongFamily    = regexp.MustCompile(`\bon family (\w+)`)
)

// NewAuditRow puts together what is said of a pair.
func NewAuditRow(p kernelwright.AuditPair) AuditRow {
	v := p.Verdict
	r := AuditRow{
		Reference: p.Reference, Candidate: p.Candidate, Status: v.Status, Reason: v.Reason, Hint: v.Hint,
		Speedup: v.Speedup, Measured: against(v, "eager"), Baselines: v.Baselines, Assumes: v.Assumes, Flags: v.Flags, KernelBench: v.Correctness.KernelBench,
	}
	if r.Baselines == nil {
		r.Baselines = map[string]float64{}
	}
	r.FromBare = slices.Contains(v.Evidence, kernelwright.FromBare)
	if v.Explained != nil {
		r.Explained, r.Correctness = v.Explained, &v.Correctness
	}
	if v.Status.OK() {
		r.Hint = ""
	}
	if p.EvaluatedMS > 0 {
		r.Evaluated = time.UnixMilli(p.EvaluatedMS).UTC().Format(time.RFC3339)
	}
	if v.CandidateMS > 0 {
		r.CandidateMS = &v.CandidateMS
	}
	if w := v.Work; w.Custom+w.Vendor+w.PyTorch > 0 {
		r.Work = &AuditWork{w.Custom, w.Vendor, w.PyTorch}
		counted := w.Custom > 0 && w.Custom >= w.PyTorch
		r.Counted = &counted
	}
	if family := familyOf(v); family != "" {
		r.WrongOn = &family
	}
	if v.Explained != nil || v.Status.OK() && degenerate(v) { // of the latter whatever returns the same wins, by any factor
		no := false
		r.Counted = &no
	}
	r.Group = groupOf(v, r.Counted)
	r.place = groupPlace(r.Group)
	if c := p.Claim; c != nil {
		r.Claimed, r.ClaimedAgainst = &c.Speedup, c.Against
		r.Measured = against(v, c.Against)
		right := v.Status.OK() || v.Explained != nil && v.Explained.Status.OK() // a policy says nothing of a claim
		if tested(v.Status) && !degenerate(v) && (!right || r.Measured != nil && !r.Measured.Vague()) {
			reaches := right && r.Measured.High >= c.Speedup
			r.Reaches = &reaches
		}
	}
	return r
}

// degenerate reports whether the reference's output does not depend on its input.
func degenerate(v kernelwright.Verdict) bool { return kernelwright.Task{Flags: v.Flags}.Degenerate() }

// tested tells the statuses that say something of a claim.
func tested(s kernelwright.Status) bool {
	switch s {
	case kernelwright.NeedsGPU, kernelwright.NoCandidate, kernelwright.NoReference, kernelwright.NotEvaluated, kernelwright.NoClaims, kernelwright.Unrecognised, kernelwright.Invalid:
		return false
	}
	return true
}

// against returns the speedup against one baseline, nil where it was not measured.
func against(v kernelwright.Verdict, baseline string) *kernelwright.Speedup {
	if s, ok := v.Speedups[baseline]; ok {
		if s.Against == "" {
			s.Against = baseline
		}
		return &s
	}
	if v.Speedup != nil && v.Speedup.Against == baseline {
		return v.Speedup
	}
	return nil
}

// onWeights stands for a family of inputs where a candidate does not follow its weights.
const onWeights = "weights"

// familyOf is the first family of inputs that a wrong candidate fails on.
func familyOf(v kernelwright.Verdict) string {
	if v.Status != kernelwright.Wrong {
		return ""
	}
	if follows := v.Correctness.FollowsWeights; follows != nil && !*follows {
		return onWeights
	}
	if m := wrongFamily.FindStringSubmatch(v.Reason); m != nil {
		return m[1]
	}
	for _, f := range v.Correctness.Families {
		if f.Gates && !f.Passed {
			return f.Name
		}
	}
	return ""
}

// groupOf says under what the summary counts a verdict.
func groupOf(v kernelwright.Verdict, counted *bool) string {
	switch {
	case v.Status.OK() && degenerate(v):
		return "degenerate"
	case v.Status.OK() && counted != nil && !*counted:
		return "rewrite"
	case v.Status.OK() && v.Speedup == nil:
		return "not_timed"
	case v.Status.OK() && v.Speedup.Wins(0):
		return "faster"
	case v.Status.OK() && v.Speedup.Slower():
		return "slower"
	case v.Status.OK() && v.Speedup.Vague():
		return "undecided"
	case v.Status.OK():
		return "no_difference"
	case missingPackage.MatchString(v.Reason) && (v.Status == kernelwright.Crashed || v.Status == kernelwright.BuildFailed):
		return "missing_package"
	case v.Candidate == "" && (v.Status == kernelwright.Rejected || v.Status == kernelwright.BuildFailed): // its text told
		return "not_python"
	}
	return string(v.Status)
}

// AuditGroup is one line of the summary.
type AuditGroup struct {
	Name, Title string
	Pairs       int
	Claims      int // how many were published with a speedup, and their geometric mean
	Claimed     float64
	Timed       int // how many have a measured one, and the geometric means
	Measured    float64
	Fastest     float64
	Reached     int // how many reach their claim
	Faster      int // than the fastest baseline, by the whole interval
	Example     string
}

// AuditSummary is what an audit comes to.
type AuditSummary struct {
	Pairs, Right, Faster, Rewrites, Degenerate, Wrong, Unevaluated int
	Passing                                                        int // of Wrong, whom KernelBench's comparison would have passed
	Claims, Tested, Reached                                        int
	Unread                                                         int    // files of claims, which are no pairs
	LeftOut                                                        string // files of which no pair is made
	Groups                                                         []AuditGroup
}

// AuditCounter makes a summary of rows, one at a time.
type AuditCounter struct {
	groups map[string]*auditSums
	all    AuditSummary
}

type auditSums struct {
	AuditGroup
	place                      int
	claimed, measured, fastest []float64
}

// counted is what the summary counts a row under, and what people read.
func (r AuditRow) counted() (id, title string) {
	switch {
	case r.WrongOn != nil && *r.WrongOn == "base":
		return r.Group + " base", "wrong on the reference's own inputs"
	case r.WrongOn != nil && *r.WrongOn == onWeights:
		return r.Group + " " + onWeights, "right with the weights of its construction, wrong with others"
	case r.WrongOn != nil:
		return r.Group + " " + *r.WrongOn, "wrong on family " + *r.WrongOn
	case r.Group == "missing_package":
		name := missingPackage.FindStringSubmatch(r.Reason)[1]
		return r.Group + " " + name, "needs a package that is not here: " + name
	}
	return r.Group, auditGroups[r.place].title
}

// Add counts a row.
func (c *AuditCounter) Add(r AuditRow) {
	if c.groups == nil {
		c.groups = map[string]*auditSums{}
	}
	id, title := r.counted()
	g := c.groups[id]
	if g == nil {
		g = &auditSums{AuditGroup: AuditGroup{Name: id, Title: title}, place: r.place}
		c.groups[id] = g
	}
	c.count(r)
	g.Pairs++
	if g.Example == "" && !r.Status.OK() {
		g.Example = r.Reason
	}
	if r.Claimed != nil {
		g.claimed = append(g.claimed, *r.Claimed)
	}
	if r.Reaches != nil && *r.Reaches {
		g.Reached++
	}
	if r.Measured != nil && sound(r.Measured.Value) && r.Status.OK() {
		g.measured = append(g.measured, r.Measured.Value)
	}
	if r.Speedup != nil && sound(r.Speedup.Value) && r.Status.OK() {
		g.fastest = append(g.fastest, r.Speedup.Value)
		if r.Speedup.Wins(0) {
			g.Faster++
		}
	}
}

// count counts a row among all.
func (c *AuditCounter) count(r AuditRow) {
	s := &c.all
	switch r.Status {
	case kernelwright.NoClaims:
		s.Unread++
		return
	case kernelwright.Unrecognised:
		s.LeftOut = r.Reason
		return
	}
	s.Pairs++
	switch {
	case r.Status.OK():
		s.Right++
		switch r.Group {
		case "faster":
			s.Faster++
		case "rewrite":
			s.Rewrites++
		case "degenerate":
			s.Degenerate++
		}
	case r.Status == kernelwright.Wrong || r.Status == kernelwright.Cheated:
		s.Wrong++
		if r.KernelBench != nil && *r.KernelBench {
			s.Passing++
		}
	case !tested(r.Status):
		s.Unevaluated++
	}
	if r.Claimed != nil {
		s.Claims++
	}
	if r.Reaches != nil {
		s.Tested++
		if *r.Reaches {
			s.Reached++
		}
	}
}

// Summary returns what was counted.
func (c *AuditCounter) Summary() AuditSummary {
	s := c.all
	var all []*auditSums
	for _, g := range c.groups {
		g.Claims, g.Timed = len(g.claimed), len(g.measured)
		g.Claimed, g.Measured, g.Fastest = geomeanOf(g.claimed), geomeanOf(g.measured), geomeanOf(g.fastest)
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *auditSums) int {
		return cmp.Or(a.place-b.place, b.Pairs-a.Pairs, strings.Compare(a.Name, b.Name))
	})
	for _, g := range all {
		s.Groups = append(s.Groups, g.AuditGroup)
	}
	return s
}

func geomeanOf(xs []float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	return score.Geomean(xs)
}

// unrun is how many do not run.
func (s AuditSummary) unrun() int { return s.Pairs - s.Right - s.Wrong - s.Unevaluated }

// Headline says it in a sentence or two.
func (s AuditSummary) Headline() string {
	said := fmt.Sprintf("%s: %d right", plural(s.Pairs, "pair"), s.Right)
	var more []string
	if s.Faster > 0 || s.Right > s.Rewrites+s.Degenerate {
		more = append(more, fmt.Sprintf("%d faster than the fastest baseline", s.Faster))
	}
	if s.Rewrites > 0 {
		more = append(more, plural(s.Rewrites, "rewrite")+" in PyTorch")
	}
	if s.Degenerate > 0 {
		more = append(more, fmt.Sprintf("%d on a reference that computes nothing", s.Degenerate))
	}
	if len(more) > 0 {
		said += " (" + strings.Join(more, ", ") + ")"
	}
	said += fmt.Sprintf(", %d wrong", s.Wrong)
	if s.Passing > 0 {
		said += fmt.Sprintf(" (%d of which KernelBench's comparison passes)", s.Passing)
	}
	said += fmt.Sprintf(", %d that do not run, %d not evaluated.", s.unrun(), s.Unevaluated)
	if s.Tested > 0 {
		said += fmt.Sprintf(" Claims of a speedup that could be tested: %d, of which reached: %d.", s.Tested, s.Reached)
	}
	if s.Unread > 0 {
		said += " " + plural(s.Unread, "file") + " of claims cannot be read."
	}
	if s.LeftOut != "" {
		said += " Left out: " + Line(s.LeftOut) + "."
	}
	return said
}
