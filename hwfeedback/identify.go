package hwfeedback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// knownVersions is what the cache keeps of an interpreter that a server was started
// with.
type knownVersions struct {
	Stamp    string            `json:"stamp"` // of what it is, see probed.stamp
	Versions map[string]string `json:"versions"`
}

// identify returns the versions that take part in every verdict, as a server says
// them. Importing PyTorch for that takes seconds, so Options.Lazy takes what an earlier
// server said, where no file that decides on it has changed since, or else what
// PyTorch's files say. A server that is started later and says otherwise is not used.
func (e *Evaluator) identify(ctx context.Context) (map[string]string, error) {
	if e.options.Lazy {
		known := e.knownVersions(ctx)
		if known == nil {
			known = e.env.versions()
		}
		if known != nil {
			e.said = known
			return maps.Clone(known), nil
		}
	}
	versions, err := e.super.versions(ctx)
	if err != nil {
		return nil, e.startFailure(ctx, err)
	}
	return maps.Clone(versions), nil
}

// versions returns what a server of it will say; nil where that is not known.
func (p pythonEnv) versions() map[string]string {
	if p.Stamp == "" || p.Says.Python == "" || p.Says.Torch == "" {
		return nil
	}
	return map[string]string{"python": p.Says.Python, "torch": p.Says.Torch}
}

// up has the first server started, and that of a lane, so that nobody keeps others from
// the device while PyTorch is imported. The error is a request's.
func (e *Evaluator) up(ctx context.Context, super *supervisor) error {
	if super == e.super && e.came.Load() {
		return nil
	}
	_, err := super.versions(ctx)
	var setup *SetupError
	switch {
	case errors.As(err, &setup):
		return setup
	case err != nil && ctx.Err() == nil && !errors.Is(err, errEvaluatorClosed):
		return infrastructure("start", err)
	}
	return err
}

func (e *Evaluator) knownVersions(ctx context.Context) map[string]string {
	var known knownVersions
	if e.env.Stamp == "" || !e.recall(ctx, cacheVersions, e.env.Interpreter, &known) || known.Stamp != e.env.Stamp || known.Versions["torch"] == "" {
		return nil
	}
	return known.Versions
}

// starting is a start that says what a person has to mend where the first server does
// not come up, and that holds each server to the versions of the verdicts.
func (e *Evaluator) starting(start func(context.Context) (*forkServer, error)) func(context.Context) (*forkServer, error) {
	return func(ctx context.Context) (*forkServer, error) {
		server, err := start(ctx)
		if err != nil && !e.came.Load() {
			return nil, e.startFailure(ctx, err)
		}
		if err != nil {
			return nil, err
		}
		e.came.Store(true)
		e.early.close() // nobody asks it any more
		if err := e.agrees(ctx, server.versions); err != nil {
			server.stop()
			return nil, err
		}
		return server, nil
	}
}

// agrees returns an error for a server whose versions are others than those that the
// verdicts are remembered by, and remembers what it said.
func (e *Evaluator) agrees(ctx context.Context, versions map[string]string) error {
	e.agreeing.Lock()
	defer e.agreeing.Unlock()
	if e.env.Stamp != "" && !maps.Equal(e.knownVersions(ctx), versions) {
		e.remember(ctx, cacheVersions, e.env.Interpreter, knownVersions{e.env.Stamp, versions})
	}
	if e.said == nil {
		e.said = versions
	}
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		if before := e.said[name]; before != versions[name] {
			return &SetupError{
				Reason: fmt.Sprintf("%s was %s and is %s now: it was changed meanwhile", name, before, versions[name]),
				Hint:   "give the command again",
			}
		}
	}
	return nil
}
