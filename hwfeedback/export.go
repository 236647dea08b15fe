package hwfeedback

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/kernelwright/kernelwright"
)

// Export returns the candidate as a standalone file that needs only torch and
// a compiler.
func (e *Evaluator) Export(ctx context.Context, cand kernelwright.Candidate) (string, error) {
	body := exportBody{candidateBody{cand.Source, cand.Language}, e.options.Sandbox}
	result, err := e.super.request(ctx, "export", body, exportTimeout)
	if err != nil {
		return "", requestError(err)
	}
	var reply struct {
		Source string `json:"source"`
	}
	if err := json.Unmarshal(result, &reply); err != nil {
		return "", infrastructure("export", err)
	}
	if reply.Source == "" {
		return "", infrastructure("export", errors.New("the referee sent an empty file"))
	}
	return reply.Source, nil
}
