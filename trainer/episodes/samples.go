package episodes

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/kernelwright/kernelwright/store"
)

// Sample is a line of /v1/samples: the columns of a trajectory's parquet, and what
// they are of. An episode's samples come together, in the order of its calls.
type Sample struct {
	Place   int64  `json:"place"` // of the episode, in the order in which they were done: for after=
	Episode int64  `json:"episode"`
	Call    int    `json:"call"`
	Task    string `json:"task"` // fingerprint
	Context string `json:"context"`

	PromptIDs    []int     `json:"prompt_ids"`
	ResponseIDs  []int     `json:"response_ids"`
	ResponseMask []int     `json:"response_mask"`
	LogProbs     []float64 `json:"rollout_logprobs"`
	Reward       *int      `json:"reward"` // the episode's, of its last call; null of those before
	Finish       string    `json:"finish_reason"`
	Policy       string    `json:"policy_version"`

	// With texts=1: what the ids are of, for who has none.
	Messages []Message `json:"messages,omitempty"`
	Text     string    `json:"text,omitempty"`
}

// sample is a row as a line. last says that no call of its episode comes after it.
func sample(r store.SampleRow, last, texts bool) Sample {
	s := Sample{
		Place: r.Place, Episode: r.Episode.Run, Call: r.Sample.Index, Task: r.Task, Context: r.Sample.Context,
		PromptIDs: r.PromptIDs, ResponseIDs: r.TokenIDs, ResponseMask: r.Sample.Mask, LogProbs: r.LogProbs,
		Finish: r.Sample.Finish, Policy: r.Sample.Policy,
	}
	if last {
		s.Reward = r.Episode.Reward
	}
	if s.ResponseMask == nil {
		s.ResponseMask = slices.Repeat([]int{1}, len(r.TokenIDs))
	}
	// Lists, not null.
	s.PromptIDs, s.ResponseIDs, s.LogProbs = append([]int{}, s.PromptIDs...), append([]int{}, s.ResponseIDs...), append([]float64{}, s.LogProbs...)
	if texts {
		s.Messages, s.Text = messages(r.Messages), r.Text
	}
	return s
}

// serveSamples streams the samples of episodes that were done, a JSON object a line:
// those after the place ?after, of ?episodes episodes at most, with ?texts=1 with
// their texts.
func (e *Episodes) serveSamples(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	after, err := strconv.ParseInt("0"+q.Get("after"), 10, 64)
	if err != nil {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("after is %.40q", q.Get("after")), "it takes the place of the last sample that you have, and 0 for none")
		return
	}
	episodes := maxEpisodes
	if text := q.Get("episodes"); text != "" {
		if episodes, err = strconv.Atoi(text); err != nil || episodes < 1 || episodes > maxEpisodes {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("episodes is %.40q", text), fmt.Sprintf("it takes a number from 1 to %d", maxEpisodes))
			return
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	control := http.NewResponseController(w)
	out := bufio.NewWriter(w)
	lines := json.NewEncoder(out)
	var before *store.SampleRow // not sent yet: what comes after it says whether it is an episode's last
	write := func(next *store.SampleRow) error {
		row := before
		before = next
		if row == nil {
			return nil
		}
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // a recorder in a test has none
		return lines.Encode(sample(*row, next == nil || next.Episode.Run != row.Episode.Run, q.Get("texts") == "1"))
	}
	err = e.o.Store.Samples(r.Context(), after, episodes, func(row store.SampleRow) error { return write(&row) })
	if err == nil {
		err = write(nil)
	}
	if err != nil { // what was sent is whole lines: the last one says that more was to come
		e.o.Log.Warn("samples cannot be sent to their end", "error", err)
		_ = lines.Encode(problem{Error: err.Error()})
	}
	_ = out.Flush()
}
