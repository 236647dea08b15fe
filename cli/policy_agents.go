package cli

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/rl"
	"github.com/kernelwright/kernelwright/trainer/serving"
)

// policyParts is what a room has for policies.
type policyParts struct {
	policies *policies.Registry
	servers  *serving.Servers
}

// openPolicies makes policies models like any other. No server is started before one is
// asked.
func (r *room) openPolicies() {
	r.policies = policies.Open(r.store, r.folder)
	r.servers = serving.New(serving.Options{Python: r.trainingPython, Check: r.policies.Check, GPU: r.servingGPU, Leases: hwfeedback.LeaseFolder(), Log: r.log})
	r.models.policies = serving.Source{Policies: r.policies, Servers: r.servers}
}

// gpus are the numbers of the GPUs on which this room measures, and of the others.
func (r *room) gpus() (mine, others []int) {
	all, err := hwfeedback.Devices(allGPUs)
	if err != nil {
		return nil, nil // there is none
	}
	measured, err := hwfeedback.Devices(r.config.Device)
	if err != nil {
		return nil, nil
	}
	for i, name := range all {
		number, err := strconv.Atoi(strings.TrimPrefix(name, "cuda:"))
		if err != nil {
			continue
		}
		first := i == 0 && slices.ContainsFunc(measured, func(m string) bool { return m == "cuda" || m == "auto" })
		if first || slices.Contains(measured, name) {
			mine = append(mine, number)
		} else {
			others = append(others, number)
		}
	}
	return mine, others
}

const allGPUs = "cuda:all"

// servingGPU is the one that policies are served on: where there are several, one on which
// nothing is measured.
func (r *room) servingGPU() int {
	mine, others := r.gpus()
	if all := slices.Concat(others, mine); len(all) > 0 {
		return all[0]
	}
	return 0
}

func (r *room) closePolicies() {
	if r.servers != nil {
		r.servers.Close()
	}
}

// trainingPython returns the Python that policies are trained and served by. It is made
// where it is not there.
func (r *room) trainingPython(ctx context.Context) (rl.Python, error) {
	o := rl.Options{DataDir: r.folder, Python: r.config.Training.Python, Progress: func(stage, note string) {
		if stage == "python" {
			r.log.Info("making the Python environment", "step", note)
		}
	}}
	if o.Python == "" {
		hardware := r.options(o.Progress)
		hardware.Lazy = true
		e, err := hwfeedback.Open(ctx, hardware, r.store, r.leases())
		if err != nil {
			return rl.Python{}, err
		}
		o.Interpreter = e.Interpreter()
		if err := e.Close(); err != nil {
			return rl.Python{}, err
		}
	}
	return rl.Open(ctx, o)
}

// signed is a Coder whose candidates name the version of a policy that wrote them, where
// it is asked by an alias.
type signed struct{ forge.Coder }

type signatureKey struct{}

// Propose implements forge.Coder.
func (s signed) Propose(ctx context.Context, in kernelwright.CoderInput) (kernelwright.Candidate, error) {
	by := s.Name()
	c, err := s.Coder.Propose(context.WithValue(ctx, signatureKey{}, &by), in)
	c.Origin = by
	if unusable := new(kernelwright.UnusableError); errors.As(err, &unusable) {
		unusable.Origin = by
	}
	return c, err
}

// signing tells signed who answered. It stands before the record, which knows that of
// calls that were answered before.
type signing struct{ llm.Model }

// Generate implements llm.Model.
func (m signing) Generate(ctx context.Context, r llm.Request) (llm.Reply, error) {
	reply, err := m.Model.Generate(ctx, r)
	if by, ok := ctx.Value(signatureKey{}).(*string); ok && err == nil {
		*by = llm.Author(m.Name(), reply)
	}
	return reply, err
}

// Unwrap returns the model that answers.
func (m signing) Unwrap() llm.Model { return m.Model }
