package hwfeedback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
)

// Inspect makes a task of a reference. A reference that cannot be one is a
// *kernelwright.InvalidTaskError. Tasks are cached by the reference's bytes, so
// the same file under another name costs nothing.
func (e *Evaluator) Inspect(ctx context.Context, name, source string) (kernelwright.Task, error) {
	if !utf8.ValidString(source) { // on its way to Python it would become another text
		return kernelwright.Task{}, errNotUTF8
	}
	if t, known := e.Inspected(ctx, name, source); known {
		return t, nil
	}
	t, err := e.inspectBeside(ctx, name, source)
	if err != nil && ctx.Err() == nil { // beside nobody
		t, err = e.inspectTwice(ctx, name, source)
	}
	if err != nil {
		return kernelwright.Task{}, err
	}
	e.remember(ctx, cacheTask, e.taskKey(source), t)
	return t, nil
}

var errNotUTF8 = &kernelwright.InvalidTaskError{Reason: "its text is not UTF-8", Hint: "save the file as UTF-8"}

// Inspected returns the task of a reference that was inspected before, and whether it
// was. It runs nothing.
func (e *Evaluator) Inspected(ctx context.Context, name, source string) (kernelwright.Task, bool) {
	var t kernelwright.Task
	known := e.recall(ctx, cacheTask, e.taskKey(source), &t)
	t.Name, t.Source = name, source
	return t, known
}

// taskKey has the threads in it where inspections share them: eager's time depends on that.
func (e *Evaluator) taskKey(source string) string {
	parts := []string{kernelwright.HashText(source), e.device.Key, e.versionsKey()}
	if n := e.inspectThreads(); n < e.threads {
		parts = append(parts, fmt.Sprintf("%d threads", n))
	}
	return joinKey(parts...)
}

// inspectThreads is how many threads an inspection has beside others.
func (e *Evaluator) inspectThreads() int {
	if e.lanes == nil {
		return e.threads
	}
	return max(1, e.threads/len(e.lanes.all))
}

// inspectTwice does not take a reference's word for it that the machine is
// broken: one that breaks down on fresh processes too, while the self-test passes,
// is no task. That the device does not work, in its driver's words, is believed:
// a fault may come and go, and the file is its user's own.
func (e *Evaluator) inspectTwice(ctx context.Context, name, source string) (kernelwright.Task, error) {
	t, err := e.inspect(ctx, name, source)
	if err == nil || !inducible(ctx, err) {
		return t, err
	}
	e.options.Log.Warn("the inspection failed and is tried again", "task", name, "error", err)
	if err := e.super.renew(ctx); err != nil {
		return kernelwright.Task{}, err
	}
	t, again := e.inspect(ctx, name, source)
	var remote *remoteError
	if again == nil || !inducible(ctx, again) || (errors.As(again, &remote) && remote.Kind == kindFault) {
		return t, again
	}
	if faulty := e.selfTest(ctx, nil); faulty != nil {
		if ctx.Err() != nil {
			return kernelwright.Task{}, context.Cause(ctx)
		}
		e.options.Log.Error("the self-test failed too", "error", faulty)
		return kernelwright.Task{}, again
	}
	return kernelwright.Task{}, &kernelwright.InvalidTaskError{
		Reason:    "its inspection broke down twice, on fresh processes, while a known task passed",
		Hint:      "make the inputs and outputs smaller, and look for signals to other processes and writing to descriptors it did not open",
		Traceback: "first: " + oneLine(err) + "\nsecond: " + oneLine(again),
	}
}

// inspectBeside inspects in a lane, with a share of the device and of its threads: with all
// of them each would wait for others' at the end of every operator, for milliseconds. What
// fails there may be the doing of others.
func (e *Evaluator) inspectBeside(ctx context.Context, name, source string) (kernelwright.Task, error) {
	if e.lanes == nil {
		return kernelwright.Task{}, errNoLane
	}
	lane, leave, err := e.lanes.enter(ctx, e.resident(kernelwright.Task{}))
	if err != nil {
		return kernelwright.Task{}, err
	}
	defer leave()
	if err := e.up(ctx, lane); err != nil {
		return kernelwright.Task{}, err
	}
	lease, err := e.turn.leases.Share(ctx, e.device.String())
	if err != nil {
		return kernelwright.Task{}, err
	}
	defer e.release(&laneLease{lease})
	return e.inspectBy(ctx, lane, lease, e.inspectThreads(), name, source)
}

var errNoLane = errors.New("there are no lanes")

// inspect runs the reference, so it needs the device: on a CPU it would
// disturb whatever is being timed.
func (e *Evaluator) inspect(ctx context.Context, name, source string) (kernelwright.Task, error) {
	if err := e.up(ctx, e.super); err != nil {
		return kernelwright.Task{}, err
	}
	lease, err := e.turn.take(ctx, e.device.String(), false)
	if err != nil {
		return kernelwright.Task{}, err
	}
	defer e.letGo(lease, false)
	return e.inspectBy(ctx, e.super, lease, e.threads, name, source)
}

func (e *Evaluator) inspectBy(ctx context.Context, by *supervisor, lease Lease, threads int, name, source string) (kernelwright.Task, error) {
	body := inspectBody{Name: name, Source: source, TimeoutS: inspectShare / kernelwright.Shared.InspectSteps * e.options.InspectTimeout.Seconds(), workplace: e.workplace()}
	body.Threads = threads
	result, err := by.request(ctx, "inspect", body, e.options.InspectTimeout, lease.File())
	if err != nil {
		return kernelwright.Task{}, requestError(err)
	}
	t, err := decodeTask(result)
	if err != nil {
		return kernelwright.Task{}, infrastructure("inspect", err)
	}
	t.Name, t.Source = name, source
	return t, nil
}

// decodeTask reads a task as the referee sends it: the graph as an object,
// not as text.
func decodeTask(result json.RawMessage) (kernelwright.Task, error) {
	var reply struct {
		Task struct {
			kernelwright.Task
			Graph json.RawMessage `json:"graph"`
		} `json:"task"`
	}
	if err := json.Unmarshal(result, &reply); err != nil {
		return kernelwright.Task{}, err
	}
	t := reply.Task.Task
	if g := string(reply.Task.Graph); g != "" && g != "null" {
		t.Graph = []byte(g)
	}
	if t.Fingerprint == "" {
		return t, errors.New("the referee sent a task without a fingerprint")
	}
	return t, nil
}
