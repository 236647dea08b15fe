package daydata

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/parquet-go/parquet-go"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
)

// The files of an export.
const (
	// TrajectoriesFile has trajectories with token ids, as rl.trajectories reads them.
	TrajectoriesFile = "trajectories.parquet"
	// PairsFile has those without, for rl.rft and rl.bootstrap: a JSON object a call,
	// its prompt and its answer as texts.
	PairsFile = "pairs.jsonl"
)

// row is a call as rl.trajectories has it (docs/trainer-rl.md).
type row struct {
	Episode         string    `parquet:"episode"`
	Call            int32     `parquet:"call"`
	PromptIDs       []int32   `parquet:"prompt_ids,list"`
	ResponseIDs     []int32   `parquet:"response_ids,list"`
	ResponseMask    []int32   `parquet:"response_mask,list"`
	RolloutLogProbs []float32 `parquet:"rollout_logprobs,list"`
	Reward          *float64  `parquet:"reward,optional"`
	FinishReason    string    `parquet:"finish_reason"`
	PolicyVersion   string    `parquet:"policy_version"`
	Task            string    `parquet:"task"`
	Verdict         *string   `parquet:"verdict,optional"`
	Invalid         bool      `parquet:"invalid"`
}

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

// Export writes what Each gives to a folder, which is made: both files, each whole
// or as it was.
func Export(ctx context.Context, s *store.Store, f Filter, folder string) (c Counts, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return c, err
	}
	rows, err := beside(folder, TrajectoriesFile)
	if err != nil {
		return c, err
	}
	defer rows.drop()
	texts, err := beside(folder, PairsFile)
	if err != nil {
		return c, err
	}
	defer texts.drop()
	table := parquet.NewGenericWriter[row](rows.file, parquet.Compression(&parquet.Zstd))
	lines := json.NewEncoder(texts.buffer)
	lines.SetEscapeHTML(false)
	c, err = Each(ctx, s, f, func(t Trajectory) error {
		if !t.Tokens {
			return write(lines, t)
		}
		of, err := rowsOf(t)
		if err == nil {
			_, err = table.Write(of)
		}
		return err
	})
	if err = errors.Join(err, table.Close()); err != nil {
		return c, fmt.Errorf("write %s: %w", filepath.Join(folder, TrajectoriesFile), err)
	}
	return c, errors.Join(rows.keep(), texts.keep())
}

func episode(t Trajectory) string { return fmt.Sprintf("run-%d", t.Run) }

func rowsOf(t Trajectory) ([]row, error) {
	verdict, err := json.Marshal(map[string]any{
		"status": t.Verdict.Status, "candidate_ms": t.Verdict.CandidateMS, "baselines": t.Verdict.Baselines, "speedup": t.Verdict.Speedup, "speedups": t.Verdict.Speedups,
	})
	if err != nil {
		return nil, err
	}
	all := make([]row, len(t.Calls))
	for i, c := range t.Calls {
		all[i] = row{
			Episode: episode(t), Call: int32(i), PromptIDs: narrow(c.PromptIDs), ResponseIDs: narrow(c.TokenIDs), ResponseMask: slices.Repeat([]int32{1}, len(c.TokenIDs)), //nolint:gosec // a run has some hundred calls
			RolloutLogProbs: make([]float32, len(c.LogProbs)), FinishReason: c.Finish, PolicyVersion: c.Author, Task: t.Task,
		}
		for j, v := range c.LogProbs {
			all[i].RolloutLogProbs[j] = float32(v)
		}
	}
	last, reward, text := &all[len(all)-1], float64(t.Reward), string(verdict)
	last.Reward, last.Verdict = &reward, &text
	return all, nil
}

// narrow returns ids as the file has them.
func narrow(ids []int) []int32 {
	out := make([]int32, len(ids))
	for i, id := range ids {
		out[i] = int32(id) //nolint:gosec // a vocabulary has fewer
	}
	return out
}

func write(lines *json.Encoder, t Trajectory) error {
	for i, c := range t.Calls {
		p := pair{Answer: c.Text, Episode: episode(t), Call: i, Task: t.Task, Reward: t.Reward, Policy: c.Author}
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
