package mcp

import (
	"context"
	"fmt"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

type evaluateArgs struct {
	taskArgs
	Candidate string `json:"candidate" jsonschema:"source of a Python file that defines ModelNew"`
	Level     string `json:"level,omitempty" jsonschema:"quick (the default) or certify, which takes longer: a new process, new seeds, the exported file itself"`
	Note      string `json:"note,omitempty" jsonschema:"one sentence on what it tries, for the record"`
}

// maxNote is the longest note, in characters.
const maxNote = 300

func (s *Server) addEvaluate() {
	tool(s, &sdk.Tool{
		Name: "evaluate", Title: "Evaluate a candidate",
		Description: "Builds, verifies and times a candidate in a sandbox, records it as a round of the open run, and returns the verdict (rejected, build_failed, crashed, timed_out, wrong, cheated, correct or certified) with one finding of what to change. Takes seconds; the first one on a task also measures its baselines.",
	}, s.evaluate)
}

func (s *Server) evaluate(ctx context.Context, req *sdk.CallToolRequest, in evaluateArgs) (string, evaluation, error) {
	level, err := oneOf("level", in.Level, string(kernelwright.Quick), string(kernelwright.Certify))
	if err != nil {
		return "", evaluation{}, err
	}
	c, err := newCandidate(in.Candidate, in.Note)
	if err != nil {
		return "", evaluation{}, err
	}
	j, err := s.job(ctx, req, in.taskArgs)
	if err != nil {
		return "", evaluation{}, err
	}
	tell, stop := progress(ctx, req)
	defer stop()
	j.Progress = tell
	round, err := s.workshop.Round(ctx, j, c)
	if err != nil {
		return "", evaluation{}, err
	}
	v := round.Verdict
	if level == string(kernelwright.Certify) && v.Status.OK() {
		if _, err := s.workshop.Certify(ctx, j, round.Index); err != nil {
			return "", evaluation{}, fmt.Errorf("round %d is recorded, and not certified: %w", round.Index, err)
		}
	}
	d, err := s.workshop.Open(ctx, j)
	if err != nil {
		return "", evaluation{}, err
	}
	for _, r := range d.Rounds {
		if r.Index == round.Index && r.Certificate != nil {
			v = *r.Certificate
		}
	}
	out := newEvaluation(round, v, bestOf(d.Rounds))
	return out.String(), out, nil
}

func newCandidate(source, note string) (kernelwright.Candidate, error) {
	if n := utf8.RuneCountInString(note); n > maxNote {
		return kernelwright.Candidate{}, bad("say it in one sentence", "a note of %d characters is too long: at most %d", n, maxNote)
	}
	text, err := candidate(source)
	return kernelwright.Candidate{Source: text, Note: report.Line(note)}, err
}
