package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/store"
)

// What a server on one's own machine can do is found out by asking it, and said
// in one line. One that somebody charges for is asked once, and that is all.
func TestWhatAServerCanDo(t *testing.T) {
	const plain = `"message":{"content":"ok"}`
	no := false
	for _, c := range []struct {
		name     string
		settings config.Options
		schema   string // the message to a request with one
		ids      string // beside the message to one for ids
		refuses  string // a field that it refuses
		want     []string
		asked    int
	}{
		{"all", config.Options{}, `"message":{"content":"{ \"held\": \"by the schema\" }"}`, `"token_ids":[7],"logprobs":{"content":[{"logprob":-0.5}]}`, "",
			[]string{"it holds replies to a schema", "its server gives the reply's token ids and log-probabilities, and none of the prompt's ids"}, 3},
		{"nothing", config.Options{}, plain, "", "", []string{"it does not hold replies to a schema: they are checked all the same", "its server gives no token ids where it is asked for them"}, 3},
		{"does not end", config.Options{}, `"message":{"content":"{ \"held\": \"by"}`, "", "", []string{"whether it holds replies to a schema is not known: one had no end after 256 tokens"}, 3},
		{"does not end, and is no JSON", config.Options{}, `"message":{"content":"Ok, ok, ok"}`, "", "", []string{"it does not hold replies to a schema"}, 3},
		{"log-probabilities alone", config.Options{}, plain, `"logprobs":{"content":[{"logprob":-0.5}]}`, "", []string{"its server gives no token ids where it is asked for them"}, 3},
		{"ids alone", config.Options{}, plain, `"token_ids":[7]`, "", []string{"its server gives token ids without log-probabilities"}, 3},
		{"refuses schemas", config.Options{}, plain, "", "response_format", []string{"a call with a schema fails (json_schema = false leaves it out): the server refuses the request (HTTP 400): no response_format here"}, 3},
		{"refuses log-probabilities", config.Options{}, plain, "", "logprobs", []string{"a call for token ids fails: the server refuses the request (HTTP 400): no logprobs here"}, 3},
		{"told so", config.Options{JSONSchema: &no}, plain, "", "", []string{"json_schema is false: replies are held to no schema"}, 2},
		{"with a key", config.Options{KeyEnv: "LAB_KEY"}, plain, "", "", []string{"it answered in"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				var q map[string]json.RawMessage
				if err != nil || json.Unmarshal(body, &q) != nil {
					t.Errorf("asked %s, %v", body, err)
				}
				asked++
				w.Header().Set("Content-Type", "application/json")
				if q[c.refuses] != nil {
					w.WriteHeader(http.StatusBadRequest)
					fmt.Fprintf(w, `{"error":{"message":"no %s here"}}`, c.refuses)
					return
				}
				message, finish := plain, "stop"
				if strings.HasPrefix(c.name, "does not end") {
					finish = "length"
				}
				switch {
				case q["response_format"] != nil:
					message = c.schema
				case q["logprobs"] != nil && c.ids != "":
					message += "," + c.ids
				}
				fmt.Fprintf(w, `{"usage":{"prompt_tokens":30,"completion_tokens":1},"choices":[{"index":0,"finish_reason":%q,%s}]}`, finish, message)
			}))
			defer server.Close()
			s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			conf := config.Default()
			// What it does with tools and how long its context is are asked elsewhere.
			c.settings.BaseURL, c.settings.NativeTools, c.settings.ContextLength = server.URL, &no, 32768
			conf.LLM.Providers = map[string]config.Options{"lab": c.settings}
			conf.LLM.Attempts = 1
			conf.Coder.Name = "lab:x"
			r := &room{config: conf, store: s, models: newModels(conf, func(string) string { return "sk-0123456789" }, s, slog.New(slog.DiscardHandler))}
			for _, check := range r.modelChecks(t.Context(), true) {
				if check.Name != "model lab:x" {
					continue
				}
				for _, want := range c.want {
					if !check.OK || !strings.Contains(check.Note, want) {
						t.Errorf("%q is not in %q", want, check.Note)
					}
				}
			}
			if asked != c.asked {
				t.Errorf("it was asked %d times, want %d", asked, c.asked)
			}
		})
	}
}
