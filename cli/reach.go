package cli

import (
	"context"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// reach returns why the server of a model that plays a role does not answer: said
// before anything is measured for it.
func (r *room) reach(ctx context.Context) error {
	for _, name := range []string{r.config.Coder.Name, r.config.Judge.Name} {
		if name == builtinCoder || name == rulesJudge || name == kernelwright.NoJudge {
			continue
		}
		if err := llm.Reach(ctx, name, r.models.options(name)); err != nil {
			return err
		}
	}
	return nil
}
