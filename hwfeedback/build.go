package hwfeedback

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// Build is what compilers made of a candidate for one architecture.
type Build struct {
	Arch   string `json:"arch"`   // "sm_90a"; empty: the CPU
	Status string `json:"status"` // "built", or a verdict's: "rejected", "build_failed", ...
	Reason string `json:"reason,omitempty"`
	// Called reports that its kernels are compiled when it runs. The key is of the
	// first language that does so.
	Called bool                     `json:"triton,omitempty"`
	Report kernelwright.BuildReport `json:"build"`
}

// Architectures are what a candidate in CUDA is built for where nobody says.
var Architectures = []string{"sm_80", "sm_90a", "sm_100a"}

// compilersDisturb reports whether what is timed on the device suffers from a
// compiler beside it.
func (e *Evaluator) compilersDisturb() bool {
	return e.gpu == nil || len(e.cpu.allowed) < kernelwright.Shared.SpareCores
}

// Build builds a candidate for architectures, for which no such GPU need be
// there; none: Architectures for code for a GPU, else the CPU. It waits for the
// device where it would disturb who measures there.
func (e *Evaluator) Build(ctx context.Context, cand kernelwright.Candidate, archs []string) ([]Build, error) {
	if err := e.contains(cand); err != nil {
		return nil, err
	}
	p, err := e.parse(ctx, e.super, cand.Source, "candidate")
	if err != nil {
		return nil, requestError(err)
	}
	var otherwise []string // where it turns out to be in CUDA, which its text need not show
	if len(archs) == 0 {
		archs = Architectures
		if p.Language == kernelwright.CPP || p.Language == "" {
			archs, otherwise = []string{""}, Architectures
		}
	}
	if e.compilersDisturb() {
		lease, err := e.turn.take(ctx, e.device.String(), false)
		if err != nil {
			return nil, err
		}
		defer e.letGo(lease, false)
	}
	body := buildBody{candidateBody{cand.Source, p.Language}, archs, otherwise, e.options.Sandbox, e.cacheDir()}
	result, err := e.super.request(ctx, "build", body, quickTimeout)
	if err != nil {
		return nil, requestError(err)
	}
	var reply struct {
		Builds []Build `json:"builds"`
	}
	if err := json.Unmarshal(result, &reply); err != nil {
		return nil, infrastructure("build", err)
	}
	if n := len(reply.Builds); n != len(archs) && n != len(otherwise) {
		return nil, infrastructure("build", fmt.Errorf("%d builds for %d architectures", n, len(archs)))
	}
	return reply.Builds, nil
}

// BuildOnly builds a candidate for the device, without measuring it. failure is
// one sentence on why it was not built, or empty. The error is infrastructure.
func (e *Evaluator) BuildOnly(ctx context.Context, cand kernelwright.Candidate) (report kernelwright.BuildReport, failure string, err error) {
	builds, err := e.Build(ctx, cand, []string{e.architecture()})
	if err != nil {
		return report, "", err
	}
	if b := builds[0]; b.Status != "built" {
		return b.Report, cmp.Or(b.Reason, b.Status), nil
	}
	return builds[0].Report, "", nil
}

// architecture is what code is compiled for: "sm_90a" where the device is an
// sm_90, whose own instructions come with the a; empty for the CPU.
func (e *Evaluator) architecture() string {
	if e.gpu == nil || len(e.device.Specs.ISA) == 0 {
		return ""
	}
	isa := e.device.Specs.ISA[0]
	if n, err := strconv.Atoi(strings.TrimPrefix(isa, "sm_")); err == nil && n >= 90 {
		isa += "a"
	}
	return isa
}
