package episodes

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/internal/web"
	"github.com/kernelwright/kernelwright/llm"
)

// Who is answered: without a token who names this machine, with one who knows it,
// and no page from elsewhere.
func TestWhoIsAnswered(t *testing.T) {
	w := newWorld(t)
	const token = "0123456789abcdef"
	for _, test := range []struct {
		name, token, host string
		header            map[string]string
		want              int
	}{
		{"this machine", "", "127.0.0.1:7790", nil, 200},
		{"by name", "", "localhost", nil, 200},
		{"by IPv6", "", "[::1]:7790", nil, 200},
		{"a name that points here", "", "evil.example:7790", nil, 403},
		{"a name like ours", "", "127.0.0.1.evil.example", nil, 403},
		{"another address", "", "10.0.0.1:7790", nil, 403},
		{"no host", "", "", nil, 403},
		{"a page of ours", "", "127.0.0.1:7790", map[string]string{"Origin": "http://127.0.0.1:7790"}, 200},
		{"a page from elsewhere", "", "127.0.0.1:7790", map[string]string{"Origin": "http://evil.example"}, 403},
		{"another port", "", "127.0.0.1:7790", map[string]string{"Origin": "http://127.0.0.1:80"}, 403},
		{"a page without an origin", "", "127.0.0.1:7790", map[string]string{"Origin": "null"}, 403},
		{"a fetch from elsewhere", "", "127.0.0.1:7790", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"without the token", token, "127.0.0.1:7790", nil, 401},
		{"with another", token, "gpu.example", map[string]string{"Authorization": "Bearer 0123456789abcdeF"}, 401},
		{"in another form", token, "gpu.example", map[string]string{"Authorization": token}, 401},
		{"with the token", token, "gpu.example", map[string]string{"Authorization": "Bearer " + token}, 200},
		{"with it, from elsewhere", token, "gpu.example", map[string]string{"Authorization": "Bearer " + token, "Origin": "http://evil.example"}, 403},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/v1/stats", nil)
			r.Host = test.host
			for k, v := range test.header {
				r.Header.Set(k, v)
			}
			got := httptest.NewRecorder()
			w.episodes.Handler(test.token).ServeHTTP(got, r)
			if got.Code != test.want || strings.Contains(got.Body.String(), token) {
				t.Errorf("%d %s, want %d", got.Code, got.Body, test.want)
			}
		})
	}
}

// What cannot be is refused in a sentence, and nothing is begun.
func TestBadRequests(t *testing.T) {
	w := newWorld(t)
	a := w.start(nil)
	turns := fmt.Sprintf("/v1/episodes/%d/turns", a.ID)
	for _, test := range []struct {
		method, path, body string
		code               int
		says               string
	}{
		{"POST", "/v1/episodes", ``, 400, "the body is empty"},
		{"POST", "/v1/episodes", `[1]`, 400, "it is array, and has to be an object"},
		{"POST", "/v1/episodes", `{"reference": "x"`, 400, "it ends in the middle"},
		{"POST", "/v1/episodes", `{"reference": "x", "rounds": "one"}`, 400, "rounds is string: it takes a whole number"},
		{"POST", "/v1/episodes", `{"reference": "x", "rounds": 1.5}`, 400, "rounds is number 1.5: it takes a whole number"},
		{"POST", "/v1/episodes", `{"reference": "x", "strict_inputs": "no"}`, 400, "strict_inputs is string: it takes true or false"},
		{"POST", "/v1/episodes", `{"reference": "x"} {}`, 400, "something follows"},
		{"POST", "/v1/episodes", `{"reference": "x", "stategy": "rounds"}`, 400, `unknown field "stategy"`},
		{"POST", "/v1/episodes", `{}`, 400, "reference is missing"},
		{"POST", "/v1/episodes", `{"reference": "  "}`, 422, "it is empty"},
		{"POST", "/v1/episodes", `{"reference": "a\u0000b"}`, 422, "NUL"},
		{"POST", "/v1/episodes", `{"reference": "no task"}`, 422, "it defines no Model"},
		{"POST", "/v1/episodes", `{"reference": "x", "strategy": "mcp"}`, 400, `strategy is "mcp"`},
		{"POST", "/v1/episodes", `{"reference": "x", "rounds": -1}`, 400, "rounds is -1"},
		{"POST", "/v1/episodes", `{"reference": "x", "rounds": 100000}`, 400, "rounds is 100000"},
		{"POST", "/v1/episodes", `{"reference": "x", "judge": "me"}`, 400, `judge mode is "me"`},
		{"POST", "/v1/episodes", `{"reference": "x", "reward": "speed"}`, 400, `reward is "speed"`},
		{"POST", "/v1/episodes", `{"reference": "x", "tools": "none"}`, 400, `tools is "none"`},
		{"POST", "/v1/episodes", `{"reference": "x", "policy_version": "a b"}`, 400, `policy_version is "a b"`},
		{"POST", "/v1/episodes", `{"reference": "x", "language": "cuda"}`, 400, `language is "cuda"`},
		{"POST", "/v1/episodes", `{"reference": "x", "strategy": "react", "context_tokens": 5}`, 400, "react context is 5"},
		{"POST", "/v1/episodes", `{"reference": "x", "context_length": 5, "max_tokens": 6}`, 400, "leaves no room"},
		{"POST", "/v1/episodes", `{"reference": "x", "seed": 1e400}`, 400, "seed"},
		{"POST", "/v1/episodes", `{"reference": "x", "expires_s": 86401}`, 400, "expires_s is 86401"},
		{"POST", "/v1/episodes", `{"reference": "x", "expires_s": -1}`, 400, "expires_s is -1"},
		{"POST", "/v1/episodes", `{"reference": "x", "session": "` + strings.Repeat("s", maxName+1) + `"}`, 400, "session has 201 bytes"},
		{"DELETE", "/v1/episodes", "", 400, "session is missing"},
		{"POST", turns, `{}`, 400, "text is missing"},
		{"POST", turns, `{"text": null}`, 400, "text is missing"},
		{"POST", turns, `{"text": "a", "call": 1}`, 409, "call 1 is not asked"},
		{"POST", turns, `{"text": "a", "call": -1}`, 409, "call -1 is not asked"},
		{"POST", turns, `{"text": "a", "finish_reason": "bored"}`, 400, `finish_reason is "bored"`},
		{"POST", turns, `{"text": "a", "token_ids": [-1]}`, 400, "token_ids[0] is -1"},
		{"POST", turns, `{"text": "a", "token_ids": [1], "logprobs": [-1, -2]}`, 400, "2 logprobs for 1 token_ids"},
		{"POST", turns, `{"text": "a", "token_ids": [1], "logprobs": [3]}`, 400, "logprobs[0] is 3"},
		{"POST", turns, `{"text": "a", "token_ids": [1], "logprobs": [null]}`, 400, "logprobs or mask holds null"},
		{"POST", turns, `{"text": "a", "token_ids": [1, null, 2]}`, 400, "logprobs or mask holds null"},
		{"POST", turns, `{"text": "a", "token_ids": [1], "logprobs": [NaN]}`, 400, "invalid character 'N'"},
		{"POST", turns, `{"text": "a", "token_ids": [1], "logprobs": [1e999]}`, 400, "holds number 1e999"},
		{"POST", turns, `{"text": "a", "token_ids": [1], "logprobs": ["NaN"]}`, 400, "holds string"},
		{"POST", turns, `{"text": "a", "token_ids": [1.5], "logprobs": [-1]}`, 400, "holds number 1.5"},
		{"POST", turns, `{"text": "a", "token_ids": "1"}`, 400, "holds string"},
		{"POST", turns, `{"text": 3}`, 400, "text is number: it takes a text"},
		{"POST", turns, `{"text": "a", "token_ids": [1], "mask": [2]}`, 400, "mask[0] is 2"},
		{"POST", turns, `{"text": "a", "token_ids": [1], "mask": []}`, 400, "mask has 0 values"},
		{"POST", turns, `{"text": "a", "tool_calls": [{"function": {"name": "read", "arguments": "{}"}}]}`, 400, "offers no tools"},
		{"POST", turns, `{"text": "a", "tool_calls": [{"id": "1", "function": {"arguments": "{}"}}]}`, 400, "no name"},
		{"POST", "/v1/episodes/0/turns", `{"text": "a"}`, 404, "no episode"},
		{"POST", "/v1/episodes/x/turns", `{"text": "a"}`, 404, "no episode"},
		{"POST", "/v1/episodes/99999999999999999999/turns", `{"text": "a"}`, 404, "no episode"},
		{"GET", "/v1/episodes/77", "", 404, "not in the history"},
		{"DELETE", "/v1/episodes/77", "", 404, "not in the history"},
		{"GET", "/v1/samples?after=-1", "", 400, "after is"},
		{"GET", "/v1/samples?episodes=0", "", 400, "episodes is"},
		{"GET", "/v1/nothing", "", 404, "there is no GET"},
		{"POST", "/v1/stats", "{}", 404, "there is no POST"},
	} {
		code, got := w.call(test.method, test.path, test.body)
		if code != test.code || !strings.Contains(fmt.Sprint(got["error"]), test.says) {
			t.Errorf("%s %s %s: %d %v, want %d with %q", test.method, test.path, test.body, code, got, test.code, test.says)
		}
	}
	if s := w.episodes.Stats(); s.Open != 1 || s.Turns != 0 || s.Begun != 1 {
		t.Errorf("%+v", s)
	}
	if b := w.turn(a.ID, text("plain")); *b.Reward != 1 {
		t.Errorf("afterwards: %+v", b)
	}
}

// zeros is a body without end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

func TestLargeBody(t *testing.T) {
	w := newWorld(t)
	r := httptest.NewRequest("POST", "/v1/episodes", zeros{})
	r.Host = "localhost"
	got := httptest.NewRecorder()
	w.episodes.Handler("").ServeHTTP(got, r)
	if got.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", got.Code, got.Body)
	}
}

// telling is a reader that says when it is read.
type telling struct {
	io.Reader
	tell func()
}

func (r telling) Read(b []byte) (int, error) {
	r.tell()
	return r.Reader.Read(b)
}

// Only so many large bodies are read at once; small ones do not wait for them.
func TestLargeBodiesTakeTurns(t *testing.T) {
	w := newWorld(t)
	for range maxLarge {
		w.episodes.large <- struct{}{}
	}
	text := `{"reference": "class Model: pass", "name": "` + strings.Repeat("n", smallBody) + `"}`
	begun := make(chan struct{})
	var free atomic.Bool
	var once sync.Once
	head := telling{strings.NewReader(text[:smallBody]), func() { once.Do(func() { close(begun) }) }}
	tail := telling{strings.NewReader(text[smallBody:]), func() {
		if !free.Load() {
			t.Error("a large body is read beside as many as may be")
		}
	}}
	var posted sync.WaitGroup
	posted.Go(func() {
		r := httptest.NewRequest("POST", "/v1/episodes", io.MultiReader(head, tail))
		r.Host = "localhost"
		got := httptest.NewRecorder()
		w.episodes.Handler("").ServeHTTP(got, r)
		if got.Code != http.StatusBadRequest || !strings.Contains(got.Body.String(), "name has") {
			t.Errorf("%d %s", got.Code, got.Body)
		}
	})
	<-begun
	w.start(nil)
	free.Store(true)
	<-w.episodes.large
	posted.Wait()
	if n := len(w.episodes.large); n != maxLarge-1 {
		t.Errorf("%d are held", n)
	}
}

// What would take much memory is refused before it is decoded, and what was sent is
// not sent back.
func TestHugeRequests(t *testing.T) {
	w := newWorld(t)
	turns := fmt.Sprintf("/v1/episodes/%d/turns", w.start(nil).ID)
	most := "[" + strings.Repeat("1,", llm.MaxPostedTokens-1) + "1]"
	for body, says := range map[string]string{
		`{"text": "a", "token_ids": [` + strings.Repeat("1,", maxValues) + `1]}`:             "the body has 4204305 values",
		`{"text": "a", "token_ids": [1,` + most[1:] + `}`:                                    "token_ids has 1048577 ids",
		`{"` + strings.Repeat("x", smallBody) + `": 1}`:                                      `unknown field "xxx`,
		`{"text": "` + strings.Repeat(`a,\",`, 1<<20+1) + `", "call": 7, "prompt_ids": [1]}`: "text has 4194308 bytes",
	} {
		code, got := w.call("POST", turns, body)
		if said := fmt.Sprint(got["error"]); code != 400 || !strings.Contains(said, says) || len(said) > 2*maxSaid {
			t.Errorf("%d %.1000s, want %q", code, said, says)
		}
	}
	n, one := 0, 1.0
	same := Turn{Call: &n, TokenIDs: []int{1, 2}, LogProbs: []float64{one, one}}
	for name, other := range map[string]Turn{
		"ids": {TokenIDs: []int{1, 3}, LogProbs: same.LogProbs}, "lists": {PromptIDs: []int{1}, TokenIDs: []int{2}, LogProbs: same.LogProbs},
		"log-probabilities": {TokenIDs: same.TokenIDs, LogProbs: []float64{one, -one}}, "mask": {TokenIDs: same.TokenIDs, LogProbs: same.LogProbs, Mask: []int{1, 0}},
		"finish": {TokenIDs: same.TokenIDs, LogProbs: same.LogProbs, Finish: "length"},
	} {
		if other.digest() == same.digest() {
			t.Errorf("other %s have the same digest", name)
		}
	}
	if again := (Turn{TokenIDs: []int{1, 2}, LogProbs: same.LogProbs}); again.digest() != same.digest() {
		t.Error("the same completion has two digests")
	}
}

// A request whose body does not come, or whose head has no end, is given up by the
// server; a turn that waits for its verdict is not.
func TestServerLimits(t *testing.T) {
	s := web.NewServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	if s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 || s.WriteTimeout != 0 {
		t.Errorf("%+v", s)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	head := "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 2*web.MaxHeader) + "\r\n\r\n"
	_, _ = c.Write([]byte(head)) // it may be closed meanwhile
	b := make([]byte, 100)
	n, _ := c.Read(b)
	if !strings.Contains(string(b[:n]), "431") {
		t.Errorf("%q", b[:n])
	}
	s.Close()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// Whatever a model says becomes a reply that can be recorded, or a sentence.
func FuzzTurn(f *testing.F) {
	f.Add([]byte(`{"call": 0, "text": "a", "token_ids": [1, 2], "logprobs": [-1, -0.5], "mask": [1, 0], "finish_reason": "length"}`))
	f.Add([]byte(`{"tool_calls": [{"id": "1", "type": "function", "function": {"name": "read", "arguments": "{"}}]}`))
	f.Add([]byte("{\"text\": \"\\ud800 \xff \\u0000\"}"))
	f.Add([]byte(`{"text": "a", "text": "b", "TEXT": "c"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var turn Turn
		if decode(body, &turn) != nil {
			return
		}
		r, err := turn.reply()
		if err != nil {
			var wrong *BadError
			if !errors.As(err, &wrong) || wrong.Text == "" {
				t.Errorf("%T %v", err, err)
			}
			return
		}
		if err := llm.CheckPosted(r); err != nil {
			t.Error(err)
		}
		if turn.digest() == [32]byte{} || turn.Mask != nil && len(turn.Mask) != len(turn.TokenIDs) {
			t.Errorf("%+v", turn)
		}
	})
}

// Whatever is asked for becomes settings that a run can have, or a sentence.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"reference": "x", "strategy": "react", "rounds": 3, "turns": 10, "context_tokens": 20000, "tools": "text", "judge": "self", "reward": "best"}`))
	f.Add([]byte(`{"reference": "x", "strict_inputs": false, "context_length": 4096, "max_tokens": 1024, "language": "cpp", "seed": -5, "policy_version": "v1"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var r Request
		if decode(body, &r) != nil || r.normalise() != nil {
			return
		}
		s, err := r.settings(forge.DefaultSettings())
		if err != nil {
			return
		}
		if err := s.Validate(); err != nil || !s.Uncertified || s.WallTime != 0 || r.StrictInputs == nil {
			t.Errorf("%+v: %v", s, err)
		}
		if !policyName.MatchString(r.Policy) {
			t.Errorf("%q", r.Policy)
		}
	})
}
