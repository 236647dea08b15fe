package mcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type profileArgs struct {
	taskArgs
	Run   int64 `json:"run,omitempty" jsonschema:"number of a recorded run; else the open run on the task"`
	Round *int  `json:"round,omitempty" jsonschema:"else the last one"`
}

// profile is what the hardware said of one candidate, beside the verdict.
type profile struct {
	Run         int64                     `json:"run"`
	Round       int                       `json:"round"`
	Status      kernelwright.Status       `json:"status"`
	Level       kernelwright.Level        `json:"level"`
	CandidateMS float64                   `json:"candidate_ms"`
	Roofline    roofline                  `json:"roofline"`
	Metrics     map[string]float64        `json:"metrics,omitempty"` // names and units: docs/metrics.md
	Custom      float64                   `json:"custom"`            // shares of the time of a forward
	Vendor      float64                   `json:"vendor"`
	PyTorch     float64                   `json:"pytorch"`
	Operators   []string                  `json:"operators,omitempty"`
	Launches    []string                  `json:"launches,omitempty"` // at certify on a GPU
	Kernels     []string                  `json:"kernels,omitempty"`  // compiled ones, of a GPU
	Profile     []string                  `json:"profile,omitempty"`  // what its kernels do there, and what eager's do
	Vectorised  int                       `json:"vectorised"`         // loops
	Missed      []kernelwright.Diagnostic `json:"missed,omitempty"`   // loops that are not, with the compiler's reason
	Finding     *kernelwright.Feedback    `json:"finding,omitempty"`
}

// roofline is where a candidate stands below what the device was measured to
// reach.
type roofline struct {
	FloorMS    float64 `json:"floor_ms"`
	Bound      string  `json:"bound"`
	Headroom   float64 `json:"headroom"` // 1 is at the roofline
	GBs        float64 `json:"gbs"`      // the least bytes over its time, 1e9 a second
	MemoryGBs  float64 `json:"memory_gbs"`
	CacheGBs   float64 `json:"cache_gbs"`
	GFLOPs     float64 `json:"gflops"`
	PeakFP32   float64 `json:"fp32_gflops"`
	LeastBytes int64   `json:"least_bytes"`
	Operations int64   `json:"operations"`
}

func (s *Server) addProfile() {
	tool(s, &sdk.Tool{
		Name: "profile", Title: "What the hardware measured",
		Description: "The numbers behind a verdict: metrics, who did the work (custom code, vendor library, PyTorch), launches, loops that were not vectorised, the position below the roofline, and the rules' finding. Of the last round of the open run, or of any recorded one. Measures nothing.",
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true},
	}, s.profile)
}

func (s *Server) profile(ctx context.Context, req *sdk.CallToolRequest, in profileArgs) (string, profile, error) {
	d, err := s.chosen(ctx, req, in)
	if err != nil {
		return "", profile{}, err
	}
	at := len(d.Rounds) - 1
	if in.Round != nil {
		at = slices.IndexFunc(d.Rounds, func(r kernelwright.Round) bool { return r.Index == *in.Round })
	}
	if at < 0 {
		return "", profile{}, bad("evaluate and history say the numbers of rounds", "run %d has no such round: it has %d", d.Run.ID, len(d.Rounds))
	}
	out, err := s.newProfile(ctx, d, at)
	return out.String(), out, err
}

// chosen reads the run that is asked about.
func (s *Server) chosen(ctx context.Context, req *sdk.CallToolRequest, in profileArgs) (d report.Data, err error) {
	if in.Run < 0 {
		return d, bad("history with what = runs lists them", "there is no run %d", in.Run)
	}
	if in.Run > 0 {
		return s.data(ctx, in.Run)
	}
	j, err := s.job(ctx, req, in.taskArgs)
	if err != nil {
		return d, err
	}
	tell, stop := progress(ctx, req)
	defer stop()
	j.Progress = tell
	if d, err = s.workshop.Open(ctx, j); errors.Is(err, store.ErrNotFound) {
		return d, bad("evaluate a candidate first, or give the number of a recorded run", "this client has no open run on the task")
	}
	return d, err
}

// data reads a recorded run.
func (s *Server) data(ctx context.Context, id int64) (d report.Data, err error) {
	if d.Run, err = s.record.Run(ctx, id); errors.Is(err, store.ErrNotFound) {
		return d, bad("history with what = runs lists them", "there is no run %d", id)
	}
	if err != nil {
		return d, err
	}
	if d.Rounds, err = s.record.Rounds(ctx, id); err != nil {
		return d, err
	}
	if d.Task, err = s.record.RunTask(ctx, id); err != nil && !errors.Is(err, store.ErrNotFound) {
		return d, err
	}
	if d.Device, err = s.record.RunDevice(ctx, id); err != nil && !errors.Is(err, store.ErrNotFound) {
		return d, err
	}
	return d, nil
}

func (s *Server) newProfile(ctx context.Context, d report.Data, at int) (profile, error) {
	r := d.Rounds[at]
	v := r.Verdict
	if r.Certificate != nil && r.Certificate.CandidateMS > 0 {
		v = *r.Certificate
	}
	p := profile{
		Run: r.RunID, Round: r.Index, Status: v.Status, Level: v.Level, CandidateMS: v.CandidateMS, Metrics: v.Metrics,
		Custom: v.Work.Custom, Vendor: v.Work.Vendor, PyTorch: v.Work.PyTorch, Vectorised: len(v.Build.Vectorised),
		Roofline: roofline{
			FloorMS: v.Floor.MS, Bound: v.Floor.Bound, Headroom: v.Headroom, LeastBytes: v.Floor.Bytes, Operations: v.Floor.Operations,
			MemoryGBs: d.Device.Ceilings.MemoryGBs, CacheGBs: d.Device.Ceilings.CacheGBs, PeakFP32: d.Device.Ceilings.FP32GFLOPs,
		},
	}
	if v.CandidateMS > 0 {
		const each = 1e-6 // 1e9 a second, of a millisecond
		p.Roofline.GBs, p.Roofline.GFLOPs = each*float64(v.Floor.Bytes)/v.CandidateMS, each*float64(v.Floor.Operations)/v.CandidateMS
	}
	for _, o := range v.Work.Operators[:min(len(v.Work.Operators), maxList)] {
		p.Operators = append(p.Operators, fmt.Sprintf("%s (%s) %s, %d calls", clip(report.Line(o.Name), maxForeign/8), report.Line(o.Kind), report.Percent(o.Share), o.Calls))
	}
	launches := report.Launches(v.Work.Launches)
	for _, l := range launches[:min(len(launches), maxList)] {
		p.Launches = append(p.Launches, clip(l, maxForeign/4))
	}
	for _, k := range v.Build.Kernels[:min(len(v.Build.Kernels), maxList)] {
		p.Kernels = append(p.Kernels, clip(report.Kernel(k), maxForeign/4))
	}
	measured := report.Profiles(r.Verdict) // a certificate has none
	for _, l := range measured[:min(len(measured), maxList)] {
		p.Profile = append(p.Profile, clip(l, maxForeign/4))
	}
	for _, m := range v.Build.Missed[:min(len(v.Build.Missed), maxList)] {
		p.Missed = append(p.Missed, kernelwright.Diagnostic{Line: m.Line, Message: clip(report.Line(m.Message), maxForeign/4)})
	}
	want := kernelwright.Correction
	if r.Verdict.Status.OK() {
		want = kernelwright.Optimisation
	}
	// Without the rounds before: what these numbers say, said before or not.
	f, err := s.judge.Judge(ctx, kernelwright.JudgeInput{
		Run: r.RunID, Task: d.Task, Device: d.Device, Want: want, Current: kernelwright.Attempt{Candidate: r.Candidate, Verdict: r.Verdict}, Seed: d.Run.Seed,
	})
	p.Finding = brief(&f)
	return p, err
}

// String is the profile for a model to read.
func (p profile) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "run %d, round %d: %s\n", p.Run, p.Round, words(p.Status))
	if p.CandidateMS > 0 {
		r := p.Roofline
		fmt.Fprintf(&b, "roofline: %s, floor %s (%s), headroom %s; %.4g of %.4g GB/s from memory (%.4g from a cache), %.4g of %.4g GFLOP/s\n",
			report.Milliseconds(p.CandidateMS), report.Milliseconds(r.FloorMS), report.Line(r.Bound), report.Percent(r.Headroom), r.GBs, r.MemoryGBs, r.CacheGBs, r.GFLOPs, r.PeakFP32)
		fmt.Fprintf(&b, "work: custom %s, vendor library %s, PyTorch %s\n", report.Percent(p.Custom), report.Percent(p.Vendor), report.Percent(p.PyTorch))
	}
	list := func(what string, lines []string) {
		for _, l := range lines {
			fmt.Fprintf(&b, "%s %s\n", what, l)
		}
	}
	list("operator", p.Operators)
	list("launch", p.Launches)
	list("kernel", p.Kernels)
	list("measured:", p.Profile)
	if p.Vectorised > 0 || len(p.Missed) > 0 {
		fmt.Fprintf(&b, "vectorised loops: %d\n", p.Vectorised)
		for _, m := range p.Missed {
			fmt.Fprintf(&b, "  not vectorised, line %d: %s\n", m.Line, m.Message)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Metrics)) {
		fmt.Fprintf(&b, "%s %.5g\n", report.Line(name), p.Metrics[name])
	}
	if p.Finding != nil {
		b.WriteString(finding(*p.Finding))
	}
	return clip(b.String(), maxAnswer)
}
