package hwfeedback

import (
	"context"
	"encoding/json"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
)

// earlyBuilds are by a server that has not imported torch, which is there within a
// third of a second. It reads texts, and tells a candidate that does not compile by its
// text and its first source, while a server that can run it is still starting, or is not needed.
type earlyBuilds struct {
	super *supervisor
	begin func()      // has a server that is kept warm start meanwhile
	warm  func() bool // whether one is there
	once  sync.Once
}

// newEarlyBuilds has nothing start yet: unpack is called before anything does. warm is
// nil where no server is kept.
func newEarlyBuilds(start func(context.Context) (*forkServer, error), unpack func() error, warm *warmServers, log *slog.Logger) *earlyBuilds {
	b := &earlyBuilds{begin: func() {}, warm: func() bool { return false }}
	b.super = newSupervisor(func(ctx context.Context) (*forkServer, error) {
		if err := unpack(); err != nil {
			return nil, err
		}
		return start(ctx)
	}, map[string]any{}, func(string, string) {}, log)
	if warm == nil {
		return b
	}
	b.warm = sync.OnceValue(warm.answers)
	b.begin = func() {
		err := unpack()
		if err == nil {
			err = warm.begin()
		}
		if err != nil {
			log.Debug("no fork server could be kept warm", "error", err)
		}
	}
	return b
}

func (b *earlyBuilds) close() {
	if b != nil {
		b.super.close()
	}
}

// askEarly returns what a server without torch answers; nil where it does not know, or
// where one with torch is there already. A failure of its own is none of anybody's.
func (e *Evaluator) askEarly(ctx context.Context, kind string, body any, timeout time.Duration) (json.RawMessage, error) {
	if e.early == nil || e.came.Load() || e.early.warm() {
		return nil, nil
	}
	e.early.once.Do(e.early.begin)
	result, err := e.early.super.request(ctx, kind, body, timeout)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		e.options.Log.Warn("a compile error waits for torch: the server without it gives no answer", "request", kind, "error", err)
		return nil, nil
	}
	return result, nil
}

// buildEarly returns the verdict on a candidate that does not build, as buildAhead
// does, where that is known without torch; nil where it is not.
func (e *Evaluator) buildEarly(ctx context.Context, task kernelwright.Task, cand kernelwright.Candidate, of batch, level kernelwright.Level) (*kernelwright.Verdict, error) {
	result, err := e.askEarly(ctx, "build_ahead", e.buildAheadBody(task, cand, of), quickTimeout)
	if result == nil {
		return nil, err
	}
	return e.failedBuild(result, task, cand, level)
}

// answers reports whether a server of this name is there and has imported torch.
func (w warmServers) answers() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	f, err := w.dial(ctx, warmAnswers)
	if err != nil {
		return false
	}
	f.stop()
	return true
}

// begin leaves a server starting where there is none, without waiting for it.
func (w warmServers) begin() error {
	if err := w.makeFolder(); err != nil {
		return err
	}
	lock, err := w.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := flock(lock, lockNow); err != nil {
		return nil // somebody else has one start, or waits for it
	}
	if _, err := os.Lstat(w.path(".sock")); err == nil {
		return nil
	}
	return w.start()
}

// young reports whether a server that was begun may still be importing torch.
func (w warmServers) young() bool {
	info, err := os.Lstat(w.path(".sock"))
	return err == nil && info.Mode().Type() == fs.ModeSocket && time.Since(info.ModTime()) < readyTimeout
}
