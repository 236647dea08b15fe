package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

type baselinesArgs struct {
	taskArgs
	Action string `json:"action,omitempty" jsonschema:"list (the default): the named ones of the task. measure: time all of them now. add: hold candidates against a program of yours, too"`
	Called string `json:"called,omitempty" jsonschema:"with add: what verdicts call it; small letters, digits, - _ and ."`
	Source string `json:"source,omitempty" jsonschema:"with add: source of a Python file that defines ModelNew"`
}

type baselines struct {
	Named    []namedBaseline      `json:"named"`
	Measured map[string]timedBase `json:"measured,omitempty"`
	Verdict  *evaluation          `json:"verdict,omitempty"` // of one that was to be added
}

type namedBaseline struct {
	Name        string                  `json:"name"`
	Device      kernelwright.DeviceKind `json:"device"`
	Language    kernelwright.Language   `json:"language"`
	CandidateMS float64                 `json:"candidate_ms"` // when it was certified
}

type timedBase struct {
	MS     float64 `json:"ms"`
	LowMS  float64 `json:"low_ms"`
	HighMS float64 `json:"high_ms"`
}

func (s *Server) addBaselines() {
	tool(s, &sdk.Tool{
		Name: "baselines", Title: "What candidates are held against",
		Description: "Lists the named baselines of a task, times all of them (eager, compiled forms, named ones), or adds a program as a named one, if it is certified. The headline speedup is against the fastest of all.",
	}, s.baselines)
}

func (s *Server) baselines(ctx context.Context, req *sdk.CallToolRequest, in baselinesArgs) (string, baselines, error) {
	none := baselines{Named: []namedBaseline{}}
	action, err := oneOf("action", in.Action, "list", "measure", "add")
	if err != nil {
		return "", none, err
	}
	if action != "add" && (in.Called != "" || in.Source != "") {
		return "", none, bad("set action to add, or leave them out", "called and source go with add")
	}
	source := ""
	if action == "add" {
		if in.Called == "" {
			return "", none, bad("called is what verdicts name it", "the baseline has no name")
		}
		if source, err = candidate(in.Source); err != nil {
			return "", none, err
		}
	}
	j, err := s.job(ctx, req, in.taskArgs)
	if err != nil {
		return "", none, err
	}
	tell, stop := progress(ctx, req)
	defer stop()
	j.Progress = tell
	out := none
	switch action {
	case "measure":
		measured, err := s.workshop.MeasureBaselines(ctx, j)
		if err != nil {
			return "", none, err
		}
		out.Measured = map[string]timedBase{}
		for name, m := range measured {
			out.Measured[name] = timedBase{m.MedianMS, m.LowMS, m.HighMS}
		}
	case "add":
		v, err := s.workshop.AddBaseline(ctx, j, in.Called, source)
		var taken *TakenError
		if errors.As(err, &taken) {
			return "", none, bad("give it a name of its own: what others are held against is not for an agent to replace", "%s", taken.Error())
		}
		if err != nil {
			return "", none, err
		}
		evaluation := newEvaluation(kernelwright.Round{}, v, nil)
		out.Verdict = &evaluation
	}
	t, _, err := s.workshop.Inspect(ctx, j)
	if err != nil {
		return "", none, err
	}
	named, err := s.record.Baselines(ctx, t.Fingerprint, "")
	if err != nil {
		return "", none, err
	}
	for _, b := range named {
		if !b.Of(t.Source) {
			continue
		}
		out.Named = append(out.Named, namedBaseline{b.Name, b.Device, b.Language, b.CandidateMS})
	}
	return out.text(in.Called), out, nil
}

func (o baselines) text(called string) string {
	var b strings.Builder
	if v := o.Verdict; v != nil {
		said := "added: " + called
		if v.Status != kernelwright.Certified {
			said = called + " is not added, because what candidates are held against must be right"
		}
		fmt.Fprintf(&b, "%s\n%s: %s\n", said, words(v.Status), v.Reason)
		if v.Hint != "" && !v.Status.OK() {
			fmt.Fprintf(&b, "hint: %s\n", v.Hint)
		}
	}
	for _, name := range report.BaselineNames(o.Measured) {
		m := o.Measured[name]
		fmt.Fprintf(&b, "%s %s (%s to %s)\n", report.Line(name), report.Milliseconds(m.MS), report.Milliseconds(m.LowMS), report.Milliseconds(m.HighMS))
	}
	if len(o.Named) == 0 {
		b.WriteString("no named baselines: eager and the compiled forms are always measured\n")
	}
	for _, n := range o.Named {
		fmt.Fprintf(&b, "named: %s, %s on %s, %s when it was added\n", report.Line(n.Name), report.Line(string(n.Language)), n.Device, report.Milliseconds(n.CandidateMS))
	}
	return clip(b.String(), maxAnswer)
}
