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
		tools    string // the message to a request with tools
		in       int    // tokens of its prompt; one without has 30
		schema   string // to one with a schema
		ids      string // beside the message to one for ids
		refuses  string // a field that it refuses
		want     []string
		asked    int
	}{
		{"all", config.Options{}, plain, 90, `"message":{"content":"{ \"held\": \"by the schema\" }"}`, `"token_ids":[7],"logprobs":{"content":[{"logprob":-0.5}]}`, "",
			[]string{"its model sees tools (one took 60 tokens)", "it holds replies to a schema", "it gives token ids and log-probabilities"}, 4},
		{"nothing", config.Options{}, plain, 30, plain, "", "",
			[]string{"it leaves tools out of its model's prompt: set native_tools = false", "it does not hold replies to a schema: they are checked all the same", "it gives neither token ids nor log-probabilities"}, 4},
		{"a call", config.Options{}, `"message":{"content":"","tool_calls":[{"id":"a","type":"function","function":{"name":"answer","arguments":"{}"}}]}`, 30, plain, `"logprobs":{"content":[{"logprob":-0.5}]}`, "",
			[]string{"its model sees tools and calls them", "it gives log-probabilities and no token ids"}, 4},
		{"counts nothing", config.Options{}, plain, 0, plain, `"token_ids":[7]`, "", []string{"whether its model sees tools is not known, since it counts no tokens", "it gives token ids and no log-probabilities"}, 4},
		{"refuses tools", config.Options{}, plain, 30, plain, "", "tools", []string{"a call with tools fails: the server refuses the request (HTTP 400): no tools here", "it does not hold replies to a schema"}, 4},
		{"refuses schemas", config.Options{}, plain, 30, plain, "", "response_format", []string{"a call with a schema fails (json_schema = false leaves it out): the server refuses the request (HTTP 400): no response_format here"}, 4},
		{"refuses log-probabilities", config.Options{}, plain, 30, plain, "", "logprobs", []string{"a call for token ids fails: the server refuses the request (HTTP 400): no logprobs here"}, 4},
		{"told so", config.Options{NativeTools: &no, JSONSchema: &no}, plain, 30, plain, "", "", []string{"native_tools is false: tools are called in words", "json_schema is false: replies are held to no schema"}, 2},
		{"with a key", config.Options{KeyEnv: "LAB_KEY"}, plain, 30, plain, "", "", []string{"it answered in"}, 1},
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
				message, in := plain, 30
				switch {
				case q["tools"] != nil:
					message, in = c.tools, c.in
				case q["response_format"] != nil:
					message = c.schema
				case q["logprobs"] != nil && c.ids != "":
					message += "," + c.ids
				}
				usage := fmt.Sprintf(`"usage":{"prompt_tokens":%d,"completion_tokens":1},`, in)
				if c.in == 0 {
					usage = ""
				}
				fmt.Fprintf(w, `{%s"choices":[{"index":0,"finish_reason":"stop",%s}]}`, usage, message)
			}))
			defer server.Close()
			s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			conf := config.Default()
			c.settings.BaseURL = server.URL
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
