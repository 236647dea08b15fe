package daydata

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
)

// PairsFile is the file of an export, for rl.rft and rl.bootstrap: a JSON object a call,
// its prompt and its answer as texts.
const PairsFile = "pairs.jsonl"

// pair is a call as texts.
type pair struct {
	Prompt  []message `json:"prompt"`
	Answer  string    `json:"answer"`
	Episode string    `json:"episode"`
	Call    int       `json:"call"`
	Task    string    `json:"task"`
	Reward  int       `json:"reward"` // of the trajectory
	Policy  string    `json:"policy_version"`
}

type message struct {
	Role    llm.Role `json:"role"`
	Content string   `json:"content"`
}

// Export writes what Each gives to a folder, which is made: the file is whole, or as it was.
func Export(ctx context.Context, s *store.Store, f Filter, folder string) (c Counts, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return c, err
	}
	texts, err := beside(folder, PairsFile)
	if err != nil {
		return c, err
	}
	defer texts.drop()
	lines := json.NewEncoder(texts.buffer)
	lines.SetEscapeHTML(false)
	if c, err = Each(ctx, s, f, func(t Trajectory) error { return write(lines, t) }); err != nil {
		return c, err
	}
	return c, texts.keep()
}

func write(lines *json.Encoder, t Trajectory) error {
	for i, c := range t.Calls {
		p := pair{Answer: c.Text, Episode: fmt.Sprintf("run-%d", t.Run), Call: i, Task: t.Task, Reward: t.Reward, Policy: c.Author}
		for _, m := range c.Messages {
			p.Prompt = append(p.Prompt, message{m.Role, m.Text})
		}
		if err := lines.Encode(p); err != nil {
			return err
		}
	}
	return nil
}

// half is a file that is being written beside the one whose place it takes.
type half struct {
	file   *os.File
	buffer *bufio.Writer
	path   string
}

func beside(folder, name string) (*half, error) {
	f, err := os.CreateTemp(folder, "."+name+".")
	if err != nil {
		return nil, err
	}
	return &half{f, bufio.NewWriter(f), filepath.Join(folder, name)}, nil
}

// keep puts it in its place.
func (h *half) keep() error {
	if err := errors.Join(h.buffer.Flush(), h.file.Sync(), h.file.Close()); err != nil {
		return err
	}
	return os.Rename(h.file.Name(), h.path)
}

// drop removes what was not kept.
func (h *half) drop() {
	_ = h.file.Close()           // it may have been
	_ = os.Remove(h.file.Name()) // it has gone to its place, or is of no use
}
