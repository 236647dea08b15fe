package hwfeedback

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/kernelwright/kernelwright"
)

// MeasureBaselines measures what the candidates for a task are held against,
// without any candidate, and keeps it for the verdicts that follow. What is known
// of an unchanged machine is not measured again. The errors are Evaluate's.
func (e *Evaluator) MeasureBaselines(ctx context.Context, task kernelwright.Task) (map[string]kernelwright.Measurement, error) {
	named, err := e.named(ctx, task)
	if err != nil {
		return nil, infrastructure("read the named baselines", err)
	}
	lease, err := e.turn.take(ctx, e.device.String(), false)
	if err != nil {
		return nil, err
	}
	defer e.letGo(lease, false)
	body, keep := e.evaluation(ctx, task, kernelwright.Quick, e.options.Baselines, named)
	result, err := e.super.converse(ctx, "baselines", body, quickTimeout, hearer{learned: keep}, lease.File())
	if err != nil {
		return nil, requestError(err)
	}
	var reply struct {
		Baselines map[string]kernelwright.Measurement `json:"baselines"`
		Learned   learned                             `json:"learned"`
	}
	if err := json.Unmarshal(result, &reply); err != nil {
		return nil, infrastructure("baselines", err)
	}
	if len(reply.Baselines) == 0 {
		return nil, infrastructure("baselines", errors.New("the referee measured none"))
	}
	keep(reply.Learned)
	return reply.Baselines, nil
}
