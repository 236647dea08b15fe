package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// recordingProvider is the provider whose models answer from a file: the model's
// part of a name is its path.
const recordingProvider = "recorded"

// maxRecordingBytes is what such a file may be at most.
const maxRecordingBytes = 64 << 20

// IsRecording reports whether a model of that name answers from a file.
func IsRecording(name string) bool { return strings.HasPrefix(name, recordingProvider+":") }

// recording is a model that says what was said in recorded runs, to the same
// call of a run on a task of the same name. What it is asked does not matter: what
// prompts show of measurements is never the same twice. So it stands for a model
// on other machines, and under other versions, where Replay has no answer.
type recording struct {
	name, path string
	replies    map[place]Reply
	// wordless are calls whose model was not shown their tools, and was asked in words
	// then: what is in replies answers that.
	wordless map[place]bool
}

// place is a call within a run on a task.
type place struct {
	task, agent string
	round, seq  int
}

// openRecording reads what `kernelwright history show RUN --talk --json` writes:
// an object of one run, or several after one another.
func openRecording(name, path string) (Model, error) {
	bad := func(format string, args ...any) error {
		return &Error{
			Kind: UnknownModel, Model: name, Text: fmt.Sprintf("the recording %s ", path) + fmt.Sprintf(format, args...),
			Hint: "`kernelwright history show RUN --talk --json` writes one",
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, bad("cannot be read: %v", withoutPath(err))
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxRecordingBytes {
		return nil, bad("is no file of at most %d MiB", maxRecordingBytes>>20)
	}
	m := &recording{name, path, map[place]Reply{}, map[place]bool{}}
	tasks := map[string]bool{}
	dec := json.NewDecoder(io.LimitReader(f, maxRecordingBytes))
	for {
		var run struct {
			Run struct {
				TaskName string `json:"task_name"`
			} `json:"run"`
			Talk []struct {
				Key   Key   `json:"key"`
				Reply Reply `json:"reply"`
			} `json:"talk"`
		}
		if err := dec.Decode(&run); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, bad("cannot be read: it is not JSON of the right form: %s", plain(err.Error()))
		}
		task := run.Run.TaskName
		switch {
		case task == "":
			return nil, bad("does not say of which task it is: run.task_name is missing")
		case tasks[task]:
			return nil, bad("has two runs on the task %s: it is not clear which of them is meant", plain(task))
		}
		tasks[task] = true
		for _, c := range run.Talk {
			// A run that went on with other settings asked again: the later answer
			// counts.
			at := place{task, c.Key.Agent, c.Key.Round, c.Key.Seq}
			if c.Reply.Stop == StopNoTools {
				m.wordless[at] = true
				continue
			}
			m.replies[at] = spoken(c.Reply)
		}
	}
	if len(m.replies) == 0 {
		return nil, bad("has no call with a model")
	}
	return m, nil
}

// spoken is what of a recorded reply is an answer to other words: not its tokens,
// and not what its provider wants to see again.
func spoken(r Reply) Reply {
	r.Carry, r.PromptIDs, r.TokenIDs, r.LogProbs = nil, nil, nil, nil
	u := &r.Usage
	u.In, u.Out, u.CachedIn, u.Reasoning = max(u.In, 0), max(u.Out, 0), max(u.CachedIn, 0), max(u.Reasoning, 0)
	switch {
	case r.Stop == "" && len(r.ToolCalls) > 0:
		r.Stop = StopTools
	case r.Stop == "":
		r.Stop = StopEnd
	}
	return r
}

func withoutPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Name implements Model.
func (m *recording) Name() string { return m.name }

// Generate implements Model. A call that the file does not have is an error of
// Kind NotRecorded.
func (m *recording) Generate(ctx context.Context, r Request) (Reply, error) {
	if err := ctx.Err(); err != nil {
		return Reply{}, err
	}
	k := r.Key
	if len(r.Tools) > 0 && m.wordless[place{r.Task, k.Agent, k.Round, k.Seq}] {
		return Reply{}, &Error{Kind: NoTools, Model: m.name, Text: notShown}
	}
	reply, ok := m.replies[place{r.Task, k.Agent, k.Round, k.Seq}]
	if !ok {
		return Reply{}, &Error{
			Kind: NotRecorded, Model: m.name,
			Text: fmt.Sprintf("the recording has no call %d of the %s in round %d of a run on the task %q", k.Seq, k.Agent, k.Round, r.Task),
			Hint: "it answers runs of the task, the strategy and the rounds that were recorded",
		}
	}
	reply.Usage = usageOr(&reply.Usage, r, reply)
	return reply, nil
}
