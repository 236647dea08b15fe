package llm

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// How servers are asked for the ids and log-probabilities of tokens, and where they
// put them (vLLM 0.10.2, SGLang 0.5.13, llama.cpp b4300 and later):
//
//   - vLLM has the ids of the prompt in prompt_token_ids beside the choices, those of
//     the reply in the choice's token_ids, and as the texts "token_id:N" of its
//     logprobs.content, which earlier versions know too;
//   - SGLang has prompt_token_ids in the choice, and there token_ids, or triples of
//     log-probability, id and text in meta_info.output_token_logprobs; not in streams;
//   - llama.cpp has an id in each entry of logprobs.content, in a stream not of each
//     token; it has none of the prompt.
//
// A reply that is asked for with them comes in one piece: two of the three lose
// tokens, or refuse, in a stream.
var (
	vllmIDs     = map[string]any{"logprobs": true, "return_token_ids": true, "return_tokens_as_token_ids": true}
	sglangIDs   = map[string]any{"logprobs": true, "return_token_ids": true, "return_prompt_token_ids": true, "return_meta_info": true}
	llamacppIDs = map[string]any{"logprobs": true, "top_logprobs": 1} // else 20 alternatives come of each token
	// Of a server of which only the address is known. Each of the three leaves alone
	// what it does not know.
	anyIDs = map[string]any{
		"logprobs": true, "top_logprobs": 1, "return_token_ids": true, "return_tokens_as_token_ids": true,
		"return_prompt_token_ids": true, "return_meta_info": true,
	}
)

// What of a reply's tokens is not there, though it was asked for.
const (
	noIDs       = "the server gives no token ids: token_ids has no effect, and what this model says cannot be trained on as it was sampled"
	noPromptIDs = "the server gives the ids of the reply's tokens, and none of the prompt's"
	noLogProbs  = "the server gives token ids without log-probabilities"
	inexactIDs  = "the server's token ids are not those of all tokens that it counts: they are left out"
)

// lenient is a part of an answer that takes no reply with it where its form is
// another than expected: it is empty then.
type lenient[T any] struct{ v T }

// UnmarshalJSON implements json.Unmarshaler.
func (l *lenient[T]) UnmarshalJSON(b []byte) error {
	var v T
	if json.Unmarshal(b, &v) == nil {
		l.v = v
	}
	return nil
}

// chatLogProbs is logprobs of a choice.
type chatLogProbs struct {
	Content []struct {
		ID      *int     `json:"id"`
		Token   string   `json:"token"`
		LogProb *float64 `json:"logprob"`
	} `json:"content"`
}

// chatMeta is SGLang's meta_info of a choice.
type chatMeta struct {
	Output [][]json.RawMessage `json:"output_token_logprobs"` // log-probability, id, text
}

// sampled gathers what an answer tells of its tokens.
type sampled struct {
	promptIDs, ids []int
	logProbs       []float64
	bad            bool // a number is missing, or is none
}

// take adds what a choice tells, in the first of the places that has ids.
func (s *sampled) take(ids []int, p chatLogProbs, meta chatMeta) {
	if len(meta.Output) > 0 {
		for _, o := range meta.Output {
			var id int
			var logProb float64
			if len(o) < 2 || json.Unmarshal(o[0], &logProb) != nil || string(o[0]) == "null" || json.Unmarshal(o[1], &id) != nil {
				s.bad = true
				return
			}
			s.ids, s.logProbs = append(s.ids, id), append(s.logProbs, logProb)
		}
		return
	}
	s.ids = append(s.ids, ids...)
	for _, c := range p.Content {
		switch written, marked := strings.CutPrefix(c.Token, "token_id:"); {
		case len(ids) > 0:
		case c.ID != nil:
			s.ids = append(s.ids, *c.ID)
		case marked:
			id, err := strconv.Atoi(written)
			s.bad = s.bad || err != nil
			s.ids = append(s.ids, id)
		}
		if c.LogProb == nil {
			s.bad = true
			return
		}
		s.logProbs = append(s.logProbs, *c.LogProb)
	}
}

// into puts the tokens into a reply, as far as they are those that were sampled:
// counted is how many the server says there are, 0 where it does not. What is
// missing is returned, or "".
func (s *sampled) into(r *Reply, counted int64) (lacks string) {
	r.PromptIDs = s.promptIDs
	negative := func(id int) bool { return id < 0 }
	switch {
	case len(s.ids) == 0:
		return noIDs
	case s.bad, counted > 0 && int64(len(s.ids)) != counted, len(s.logProbs) > 0 && len(s.logProbs) != len(s.ids), slices.ContainsFunc(s.ids, negative):
		return inexactIDs
	}
	r.TokenIDs, r.LogProbs = s.ids, s.logProbs
	switch {
	case len(s.logProbs) == 0:
		return noLogProbs
	case len(s.promptIDs) == 0:
		return noPromptIDs
	}
	return ""
}

// onces are sentences that were said.
type onces struct {
	mu   sync.Mutex
	said map[string]bool
}

// first reports whether a sentence was not said before.
func (o *onces) first(sentence string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.said[sentence] {
		return false
	}
	if o.said == nil {
		o.said = map[string]bool{}
	}
	o.said[sentence] = true
	return true
}

// checkTokenIDs refuses to ask a provider for what it never gives.
func checkTokenIDs(name string, p provider, o Options) error {
	if p.open || !*o.TokenIDs {
		return nil
	}
	who, _, _ := strings.Cut(name, ":")
	return &Error{
		Kind: BadRequest, Model: name, Text: fmt.Sprintf("token_ids: %s gives no token ids", who),
		Hint: "leave token_ids out for this model; servers of open models have them: vLLM, SGLang, llama.cpp",
	}
}
