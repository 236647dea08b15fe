package serving

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/trainer/policies"
)

// MuteError says that a policy cannot answer, through no fault of the machine.
type MuteError struct {
	Policy policies.Policy
	Why    string // one sentence, without a full stop
	Err    error  // may be nil
}

func (e *MuteError) Error() string {
	return fmt.Sprintf("policy %s cannot answer: %s", e.Policy.Name(), e.Why)
}

// Hint says what to do.
func (e *MuteError) Hint() string {
	return "what served before goes on; promote another one (`kernelwright policy ls`)"
}

// Unwrap returns the cause.
func (e *MuteError) Unwrap() error { return e.Err }

const (
	smokeTokens = 8               // that a smoke request asks for
	smokeTime   = 5 * time.Minute // that its answer may take, beside others' on a slow machine
	smokeBytes  = 1 << 20
)

// Smoke has a policy answer one request, by the server that its calls will go to. The error
// is a *MuteError where the policy itself is at fault, else as Acquire's.
func (s *Servers) Smoke(ctx context.Context, p policies.Policy) error {
	at, release, err := s.Acquire(ctx, p)
	if err != nil {
		if told := new(Error); errors.As(err, &told) && told.Lasting && !errors.As(err, new(*hwfeedback.SetupError)) {
			return &MuteError{p, told.Text, err}
		}
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, smokeTime)
	defer cancel()
	status, body, err := ask(ctx, at)
	if err != nil {
		return &Error{Text: fmt.Sprintf("the server of policy %s gave no answer: %v", p.Name(), err), Hint: "try again", Err: err}
	}
	if status == http.StatusServiceUnavailable && bytes.Contains(body, []byte("too little memory")) {
		return &Error{Text: fmt.Sprintf("there is too little memory for an answer of policy %s", p.Name()), Hint: "end what else takes memory here, and try again"}
	}
	if why := wrong(status, body); why != "" {
		return &MuteError{p, why, nil}
	}
	return nil
}

// ask sends a request and returns what came back.
func ask(ctx context.Context, at Endpoint) (status int, body []byte, err error) {
	text, err := json.Marshal(map[string]any{
		"model": at.Model, "max_tokens": smokeTokens, "seed": 1, "messages": []map[string]string{{"role": "user", "content": "Write a kernel."}},
	})
	if err != nil {
		return 0, nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at.URL+"/chat/completions", bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+at.Token)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(io.LimitReader(answer.Body, smokeBytes))
	return answer.StatusCode, body, err
}

// wrong says what is wrong with an answer, "" where nothing is. Numbers that are none, as
// damaged weights give, are no JSON.
func wrong(status int, body []byte) string {
	var said struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
		Choices []struct {
			TokenIDs []int `json:"token_ids"`
			LogProbs struct {
				Content []struct {
					LogProb *float64 `json:"logprob"`
				} `json:"content"`
			} `json:"logprobs"`
		} `json:"choices"`
	}
	err := json.Unmarshal(body, &said)
	if status != http.StatusOK {
		if said.Error.Message != "" {
			return strings.TrimSuffix(said.Error.Message, ".")
		}
		return fmt.Sprintf("its server answers with status %d", status)
	}
	switch {
	case err != nil:
		return fmt.Sprintf("what it computes is not finite, or no answer: %v", err)
	case len(said.Choices) != 1 || len(said.Choices[0].TokenIDs) == 0 || len(said.Choices[0].TokenIDs) != len(said.Choices[0].LogProbs.Content):
		return "its answer has no tokens"
	}
	for _, c := range said.Choices[0].LogProbs.Content {
		if c.LogProb == nil {
			return "its answer has tokens without a log-probability"
		}
	}
	return ""
}
