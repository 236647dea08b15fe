package mcp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type submitArgs struct {
	taskArgs
	Round     *int   `json:"round,omitempty" jsonschema:"the round whose candidate it is; else the fastest that can be certified"`
	Candidate string `json:"candidate,omitempty" jsonschema:"source of a candidate, which becomes a round first; not beside round"`
	Note      string `json:"note,omitempty" jsonschema:"one sentence on the candidate, for the record"`
}

type submitted struct {
	Kept    bool       `json:"kept"`             // it was certified, the run has ended, and the kernel's file is there
	Result  string     `json:"result,omitempty"` // of the run, where it has ended: faster, no_difference, undecided, not_timed, or nothing_faster, which gets no kernel's file
	Verdict evaluation `json:"verdict"`
	Files   Results    `json:"files"`
}

func (s *Server) addSubmit() {
	tool(s, &sdk.Tool{
		Name: "submit", Title: "Certify and keep the best kernel",
		Description: "Certifies the fastest correct candidate of the open run (or the given one), ends the run and writes NAME.best.py, its certificate and reports; returns their paths. A kernel that is slower than the fastest baseline by its whole interval ends the run without its file. What is not certified is not kept, the run stays open, and the verdict says why. A later evaluate begins a new run.",
	}, s.submit)
}

func (s *Server) submit(ctx context.Context, req *sdk.CallToolRequest, in submitArgs) (string, submitted, error) {
	none := submitted{}
	if in.Round != nil && in.Candidate != "" {
		return "", none, bad("give one of them, or neither for the fastest", "round and candidate are both given")
	}
	index := -1
	if in.Round != nil {
		if index = *in.Round; index < 0 {
			return "", none, bad("rounds count from 0", "there is no round %d", index)
		}
	}
	var c kernelwright.Candidate
	var err error
	if in.Candidate != "" {
		if c, err = newCandidate(in.Candidate, in.Note); err != nil {
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
	if in.Candidate != "" {
		r, err := s.workshop.Round(ctx, j, c)
		if err != nil {
			return "", none, err
		}
		if !r.Verdict.Status.OK() {
			return notKept(r, r.Verdict, nil)
		}
		index = r.Index
	}
	d, err := s.workshop.Open(ctx, j)
	if errors.Is(err, store.ErrNotFound) {
		return "", none, bad("evaluate a candidate first, or give one here", "this client has no open run on the task, so there is nothing to submit")
	}
	if err != nil {
		return "", none, err
	}
	if err := submittable(d, index); err != nil {
		return "", none, err
	}
	kept, err := s.workshop.Certify(ctx, j, index)
	if err != nil {
		return "", none, err
	}
	if d, err = s.workshop.Open(ctx, j); err != nil {
		return "", none, err
	}
	if kept == nil {
		r, v := failedLast(d, index)
		return notKept(r, v, bestOf(d.Rounds))
	}
	files, err := s.workshop.Finish(ctx, j)
	if err != nil {
		return "", none, err
	}
	// What is written is the fastest of those that are certified.
	best, v, _ := report.Best(d.Rounds)
	out := submitted{report.HandedOut(v), report.Result(kernelwright.RunDone, d.Rounds), newEvaluation(best, v, nil), files}
	out.Verdict.Finding = nil
	var b strings.Builder
	b.WriteString(out.Verdict.String())
	if !out.Kept {
		fmt.Fprintf(&b, "the run has ended with nothing faster than %s, so no kernel's file was written; `%s` writes it\n", report.Against(v.Speedup), report.Export(best.RunID, best.Index))
	}
	for _, f := range []struct{ what, path string }{{"kernel", files.Kernel}, {"certificate", files.Certificate}, {"report", files.Markdown}, {"report", files.HTML}} {
		if f.path != "" {
			fmt.Fprintf(&b, "%s: %s\n", f.what, report.Line(f.path))
		}
	}
	if files.Older != "" {
		fmt.Fprintf(&b, "%s\n", report.Line(files.Older))
	}
	if files.Problem != "" {
		fmt.Fprintf(&b, "not everything could be written, and the record has it all: %s\n", report.Line(files.Problem))
	}
	return b.String(), out, nil
}

// submittable says what keeps a run, or one of its rounds, from being certified.
func submittable(d report.Data, index int) error {
	if index >= len(d.Rounds) {
		return bad("evaluate says the number of each round", "run %d has no round %d: it has %d", d.Run.ID, index, len(d.Rounds))
	}
	for _, r := range d.Rounds {
		if (index < 0 || r.Index == index) && r.Verdict.Status.OK() && r.Verdict.CandidateMS > 0 {
			return nil
		}
	}
	if index >= 0 {
		return bad("submit a round that is correct", "round %d is %s", index, words(d.Rounds[index].Verdict.Status))
	}
	return bad("evaluate says what is wrong with each", "none of the %d candidates of run %d is correct so far", len(d.Rounds), d.Run.ID)
}

// failedLast is the round whose certification failed: the fastest where several
// were tried.
func failedLast(d report.Data, index int) (kernelwright.Round, kernelwright.Verdict) {
	var failed kernelwright.Round
	for _, r := range d.Rounds {
		if r.Certificate == nil || index >= 0 && r.Index != index {
			continue
		}
		if failed.Certificate == nil || r.Verdict.CandidateMS < failed.Verdict.CandidateMS {
			failed = r
		}
	}
	if failed.Certificate == nil {
		return failed, failed.Verdict
	}
	return failed, *failed.Certificate
}

func notKept(r kernelwright.Round, v kernelwright.Verdict, best *standing) (string, submitted, error) {
	out := submitted{Verdict: newEvaluation(r, v, best)}
	return "not kept, and the run stays open\n" + out.Verdict.String(), out, nil
}
