package llmtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kernelwright/kernelwright/llm"
)

// Canary is the key that servers here want. Nothing that a model returns may
// hold it.
const Canary = "sk-canary-5f1e0c9d7b3a"

// KeyEnv is the environment variable that Options name for it.
const KeyEnv = "LLMTEST_KEY"

// Server is a model's server that says what it is told to. It checks requests as
// its protocol has it, and answers those that are wrong with its error.
type Server struct {
	// URL is where the protocol's paths begin.
	URL string
	// Reply answers when nothing that Say gave is left; nil: with "ok".
	Reply func(Asked) Answer

	protocol protocol
	context  Context
	http     *http.Transport

	mu    sync.Mutex
	queue []Answer
	asked []Asked
	told  []string // the paths at which it was asked for its context
}

// Asked is a request that a server has taken.
type Asked struct {
	Header http.Header
	Body   map[string]any
	Stream bool
	Last   string // the text of the last message
}

// protocol is how a server reads and writes.
type protocol interface {
	// path is where requests go, below the server's URL.
	path() string
	// signed reports whether a request has the key.
	signed(h http.Header) bool
	// check says what is wrong with a request, or "", and reads the last text.
	check(body map[string]any) (wrong, last string)
	// obey makes a reply what the request forces it to be.
	obey(body map[string]any, a Answer) Answer
	// problem writes an error.
	problem(p Problem, text string) (status int, body string)
	// whole is a reply in one piece, events one in many.
	whole(a Answer) string
	events(a Answer) []string
	// more is one event of a stream that does not end.
	more() string
	// inStream is an error in the middle of a stream.
	inStream() string
}

func newServer(t testing.TB, p protocol, base string) *Server {
	t.Helper()
	s := &Server{protocol: p, http: &http.Transport{MaxIdleConnsPerHost: 64}}
	h := httptest.NewServer(s)
	s.URL = h.URL + base
	t.Cleanup(func() {
		s.http.CloseIdleConnections()
		h.CloseClientConnections()
		h.Close()
	})
	return s
}

// Options are those that a model of this server needs.
func (s *Server) Options() llm.Options {
	return llm.Options{
		BaseURL: s.URL, KeyEnv: KeyEnv, HTTP: s.http,
		Getenv: func(name string) string {
			if name == KeyEnv {
				return Canary
			}
			return ""
		},
	}
}

// Say tells what to answer to the next requests, in order.
func (s *Server) Say(answers ...Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, answers...)
}

// Asked returns the requests that were right, in order.
func (s *Server) Asked() []Asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.tell(w, r) {
		return
	}
	if !strings.HasSuffix(r.URL.Path, s.protocol.path()) || r.Method != http.MethodPost {
		s.fail(w, NoModel, "no such path")
		return
	}
	if !s.protocol.signed(r.Header) {
		s.fail(w, WrongKey, "")
		return
	}
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		s.fail(w, BadField, "the body is no JSON")
		return
	}
	wrong, last := s.protocol.check(body)
	if wrong != "" {
		s.fail(w, BadField, wrong)
		return
	}
	if status, text := s.context.refusal(body); status != 0 {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
		return
	}
	stream, _ := body["stream"].(bool)
	a := s.context.within(body, s.protocol.obey(body, s.next(Asked{r.Header, body, stream, last})))
	if a.Hold != nil {
		select {
		case <-a.Hold:
		case <-r.Context().Done():
			return
		}
	}
	for key, values := range a.Header {
		w.Header()[key] = values
	}
	if a.Problem != "" {
		s.fail(w, a.Problem, "")
		return
	}
	w.Header().Set("X-Request-Id", "req-1")
	if err := s.send(w, a, stream); err != nil {
		return // the caller has left
	}
}

func (s *Server) next(asked Asked) Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, asked)
	if len(s.queue) > 0 {
		a := s.queue[0]
		s.queue = s.queue[1:]
		return a
	}
	if s.Reply != nil {
		return s.Reply(asked)
	}
	return Answer{Text: "ok"}
}

func (s *Server) fail(w http.ResponseWriter, p Problem, text string) {
	switch p {
	case Page:
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, "<html><h1>502 Bad Gateway</h1></html>")
		return
	case Moved:
		w.Header().Set("Location", "http://elsewhere.invalid/")
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	status, body := s.protocol.problem(p, text)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// send writes a reply with its fault.
func (s *Server) send(w http.ResponseWriter, a Answer, stream bool) error {
	if a.Fault == Refused {
		return hangUp(w, false)
	}
	if !stream {
		w.Header().Set("Content-Type", "application/json")
		return s.sendWhole(w, a)
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	events := s.protocol.events(a)
	for i, e := range events {
		if i == len(events)/2 {
			switch a.Fault {
			case Cut:
				return nil
			case Reset:
				return hangUp(w, true)
			case Garbage:
				e = "data: {\"choices\": [ this is no JSON\n\n"
			case InStream:
				e = s.protocol.inStream()
			case Endless:
				return repeat(w, s.protocol.more())
			case LongLine:
				if _, err := io.WriteString(w, `data: {"id":"`); err != nil {
					return err
				}
				return repeat(w, strings.Repeat("x", 4096))
			}
		}
		if _, err := io.WriteString(w, e); err != nil {
			return err
		}
		flush(w)
	}
	return nil
}

func (s *Server) sendWhole(w http.ResponseWriter, a Answer) error {
	body := s.protocol.whole(a)
	var err error
	switch a.Fault {
	case Cut: // the length that was promised does not come
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		_, err = io.WriteString(w, body[:len(body)/2])
	case Reset:
		_, err = io.WriteString(w, body[:len(body)/2])
		err = errors.Join(err, hangUp(w, true))
	case Garbage:
		_, err = io.WriteString(w, "this is no JSON")
	case InStream:
		_, text := s.protocol.problem(Broken, "")
		_, err = io.WriteString(w, text)
	case Endless, LongLine:
		if _, err = io.WriteString(w, `{"id":"`); err == nil {
			err = repeat(w, strings.Repeat("x", 4096))
		}
	default:
		_, err = io.WriteString(w, body)
	}
	return err
}

// repeat writes until the caller has left.
func repeat(w io.Writer, s string) error {
	for {
		if _, err := io.WriteString(w, s); err != nil {
			return err
		}
	}
}

func flush(w http.ResponseWriter) {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}

// hangUp breaks the connection, after what was written has gone out where there
// is any.
func hangUp(w http.ResponseWriter, written bool) error {
	c := http.NewResponseController(w)
	if written {
		if err := c.Flush(); err != nil {
			return err
		}
	}
	conn, _, err := c.Hijack()
	if err != nil {
		return err
	}
	return conn.Close()
}

// pieces cuts a text into n parts between runes.
func pieces(text string, n int) []string {
	if n == 0 {
		n = 3
	}
	runes := []rune(text)
	var out []string
	for i := range n {
		if part := string(runes[i*len(runes)/n : (i+1)*len(runes)/n]); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// usage is what an answer says it took.
func (a Answer) usage() llm.Usage {
	if a.Usage != nil {
		return *a.Usage
	}
	return llm.Usage{In: 11, Out: 7}
}

// event frames an event of a stream.
func event(kind string, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // a test's own value
	}
	if kind != "" {
		kind = "event: " + kind + "\n"
	}
	return kind + "data: " + string(b) + "\n\n"
}

// textOf returns v as JSON.
func textOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // a test's own value
	}
	return string(b)
}

// object is a JSON object.
type object = map[string]any

// list returns a field that is a list of objects.
func list(o object, key string) []object {
	var out []object
	items, _ := o[key].([]any)
	for _, i := range items {
		if o, ok := i.(object); ok {
			out = append(out, o)
		}
	}
	return out
}

// callName is what a tool in a talk may be called.
var callName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// unknown returns the first field that is not among those known.
func unknown(body object, known ...string) string {
	for key := range body {
		if !slices.Contains(known, key) {
			return key
		}
	}
	return ""
}
