package llm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// TestModelServer runs the contract against llama.cpp's own server with a small
// real model, and what only a real one has: a context that is full, tokens that it
// counts, tools and schemas that its grammar holds it to, a call that is left.
func TestModelServer(t *testing.T) {
	soak.Only(t)
	const room = 2048
	server := llmtest.StartLlama(t, room, llmtest.LlamaTools)
	client := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(client.CloseIdleConnections)
	open := func(t *testing.T, o llm.Options) llm.Model {
		t.Helper()
		o.BaseURL, o.HTTP = server.URL+"/v1", client
		m, err := llm.Open("llamacpp:"+llmtest.LlamaModel, o)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			if stream { // as is the default: once is enough of a model that takes its time
				llmtest.Suite(t, func(t *testing.T) llmtest.Subject { return llmtest.Subject{Model: open(t, llm.Options{})} })
			}
			m := open(t, llm.Options{Stream: &stream})

			words := strings.Repeat("word ", 200)
			n := int64(server.Tokens(words))
			reply, err := m.Generate(t.Context(), llmtest.Ask(words))
			if err != nil || reply.Usage.Estimated || reply.Usage.In < n || reply.Usage.In > n+100 {
				t.Errorf("a prompt of %d tokens: %+v, %v", n, reply.Usage, err)
			}

			_, err = m.Generate(t.Context(), llmtest.Ask(strings.Repeat("word ", room)))
			if kindOf(err) != llm.TooLong || !strings.Contains(err.Error(), fmt.Sprint(room)) {
				t.Errorf("a prompt that is too long: %v", err)
			}

			q := llmtest.Ask("Write the numbers from 1 to 500: 1, 2, 3, 4, 5, 6, 7,")
			q.MaxTokens = 10 * room
			reply, err = m.Generate(t.Context(), q)
			if u := reply.Usage; err != nil || u.In+u.Out > room || reply.Stop == llm.StopLength {
				t.Errorf("a reply that may be longer than the context: %+v, %s, %v", u, reply.Stop, err)
			}

			q = llmtest.Ask("What is broken?")
			q.MaxTokens = 200
			q.Schema = &llm.Schema{Name: "fault", Schema: json.RawMessage(`{"type":"object","properties":{"part":{"type":"string","enum":["the loop","the bound"]},"line":{"type":"integer","enum":[3,7]}},"required":["part","line"],"additionalProperties":false}`)}
			var said struct {
				Part string
				Line int
			}
			reply, err = m.Generate(t.Context(), q)
			if err == nil {
				err = json.Unmarshal([]byte(reply.Text), &said)
			}
			if err != nil || said.Part != "the loop" && said.Part != "the bound" || said.Line != 3 && said.Line != 7 {
				t.Errorf("a reply that is held to a schema: %q, %v", reply.Text, err)
			}

			yes := true
			reply, err = open(t, llm.Options{Stream: &stream, TokenIDs: &yes}).Generate(t.Context(), llmtest.Ask("Go."))
			if n := int(reply.Usage.Out); err != nil || len(reply.TokenIDs) != n && len(reply.TokenIDs) != 0 || len(reply.LogProbs) != len(reply.TokenIDs) {
				t.Errorf("%d ids and %d log-probabilities of %d tokens, %v", len(reply.TokenIDs), len(reply.LogProbs), n, err)
			}

			plain, err := m.Generate(t.Context(), llmtest.Ask("Go."))
			if err != nil {
				t.Fatal(err)
			}
			q = llmtest.Ask("Go.")
			q.Tools = []llm.Tool{{Name: "read", Description: "shows a file", Parameters: json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}},"required":["path"],"additionalProperties":false}`)}}
			if reply, err = m.Generate(t.Context(), q); err != nil || reply.Usage.In < plain.Usage.In+20 {
				t.Errorf("a prompt has %d tokens, and with a tool %d, %v", plain.Usage.In, reply.Usage.In, err)
			}

			// What is left is not answered any more: the next call is not behind it.
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan error, 1)
			go func() {
				q := llmtest.Ask("Write the numbers from 1 to 500: 1, 2, 3, 4, 5, 6, 7,")
				q.MaxTokens = room
				_, err := m.Generate(ctx, q)
				left <- err
			}()
			server.Answering()
			leave()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("a call that is left: %v", err)
			}
			if _, err := m.Generate(t.Context(), llmtest.Ask("Go.")); err != nil {
				t.Error(err)
			}

			// A server that pauses is late, and one that dies has broken off.
			late := llm.WithDeadline(m, 2*time.Second)
			server.Pause()
			if _, err := late.Generate(t.Context(), llmtest.Ask("Go.")); kindOf(err) != llm.Late {
				t.Errorf("a server that pauses: %v", err)
			}
			server.GoOn()
			go func() {
				q := llmtest.Ask("Write the numbers from 1 to 500: 1, 2, 3, 4, 5, 6, 7,")
				q.MaxTokens = room
				_, err := m.Generate(t.Context(), q)
				left <- err
			}()
			server.Answering()
			server.Kill()
			if kind := kindOf(<-left); kind != llm.Truncated && kind != llm.Unavailable {
				t.Errorf("a server that dies: %v", kind)
			}
			if _, err := m.Generate(t.Context(), llmtest.Ask("Go.")); kindOf(err) != llm.Unreachable {
				t.Errorf("a server that is gone: %v", err)
			}
			server.Return()
			if _, err := m.Generate(t.Context(), llmtest.Ask("Go.")); err != nil {
				t.Errorf("a server that is back: %v", err)
			}
		})
	}
}
