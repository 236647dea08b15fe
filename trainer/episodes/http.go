package episodes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/web"
	"github.com/kernelwright/kernelwright/store"
)

// Limits of what comes over HTTP.
const (
	maxBody = 32 << 20 // of a turn with a million ids and log-probabilities
	// Beyond smallBody only maxLarge bodies are read and decoded at once: that takes some
	// ten times their size in memory.
	smallBody = 1 << 20
	maxLarge  = 2

	writeTimeout = time.Minute // of an answer, once it is there
	// fullRetry is after how many seconds a client that found no place may ask again.
	fullRetry = "5"
	// maxEpisodes is of how many episodes one answer has the samples.
	maxEpisodes = 10_000
)

// Handler serves the episodes: docs/episodes.md has the protocol. Without a token it
// answers who names a loopback address as its host alone; with one, who knows it. What
// a page in a browser sends from elsewhere is refused in any case.
func (e *Episodes) Handler(token string) http.Handler {
	routes := e.Routes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !web.SameOrigin(r):
			refuse(w, http.StatusForbidden, "requests of pages from elsewhere are not answered", "")
		case token == "" && !web.Loopback(r.Host):
			refuse(w, http.StatusForbidden, fmt.Sprintf("the host %.100q is no loopback address", r.Host), "name 127.0.0.1, or give the server a token")
		case token != "" && !web.Bearer(r, token):
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, http.StatusUnauthorized, "the token is missing, or another one", "send it as Authorization: Bearer TOKEN")
		default:
			routes.ServeHTTP(w, r)
		}
	})
}

// Routes serves the episodes to whoever asks: a server with checks of its own mounts them.
func (e *Episodes) Routes() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("POST /v1/episodes", e.serveStart)
	m.HandleFunc("POST /v1/episodes/{id}/turns", e.serveTurn)
	m.HandleFunc("GET /v1/episodes/{id}", e.serveGet)
	m.HandleFunc("DELETE /v1/episodes/{id}", e.serveGiveUp)
	m.HandleFunc("DELETE /v1/episodes", e.serveGiveUpSession)
	m.HandleFunc("GET /v1/samples", e.serveSamples)
	m.HandleFunc("GET /v1/stats", func(w http.ResponseWriter, _ *http.Request) { send(w, http.StatusOK, e.Stats()) })
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, fmt.Sprintf("there is no %s %.100s here", r.Method, r.URL.Path), "docs/episodes.md has what there is")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		m.ServeHTTP(w, r)
	})
}

func (e *Episodes) serveStart(w http.ResponseWriter, r *http.Request) {
	var q Request
	if !e.read(w, r, &q) {
		return
	}
	a, err := e.Start(r.Context(), q)
	reply(w, http.StatusCreated, a, err)
}

func (e *Episodes) serveTurn(w http.ResponseWriter, r *http.Request) {
	id, ok := number(w, r)
	var t Turn
	if !ok || !e.read(w, r, &t) {
		return
	}
	a, err := e.Turn(r.Context(), id, t)
	reply(w, http.StatusOK, a, err)
}

func (e *Episodes) serveGet(w http.ResponseWriter, r *http.Request) {
	if id, ok := number(w, r); ok {
		a, err := e.Get(r.Context(), id)
		reply(w, http.StatusOK, a, err)
	}
}

func (e *Episodes) serveGiveUp(w http.ResponseWriter, r *http.Request) {
	if id, ok := number(w, r); ok {
		a, err := e.GiveUp(r.Context(), id)
		reply(w, http.StatusOK, a, err)
	}
}

// serveGiveUpSession gives up what is open of ?session.
func (e *Episodes) serveGiveUpSession(w http.ResponseWriter, r *http.Request) {
	session := r.URL.Query().Get("session")
	if session == "" {
		refuse(w, http.StatusBadRequest, "session is missing", "name the session whose episodes are given up: ?session=S")
		return
	}
	n, err := e.GiveUpSession(r.Context(), session)
	if err != nil {
		reply(w, 0, Answer{}, err)
		return
	}
	send(w, http.StatusOK, map[string]int{"given_up": n})
}

// number reads which episode it is about.
func number(w http.ResponseWriter, r *http.Request) (int64, bool) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || id <= 0 {
		refuse(w, http.StatusNotFound, fmt.Sprintf("there is no episode %.40q", r.PathValue("id")), "an episode's number is in the answer that began it")
		return 0, false
	}
	return id, true
}

// read reads the body, or says what is wrong with it.
func (e *Episodes) read(w http.ResponseWriter, r *http.Request, into any) bool {
	body, done, err := e.body(w, r)
	defer done()
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", large.Limit), "")
		return false
	case errors.Is(err, errClosing):
		reply(w, 0, Answer{}, err)
		return false
	case err != nil:
		refuse(w, http.StatusBadRequest, "the body cannot be read to its end", "send it again")
		return false
	}
	// The answer may take longer than the body may: the server would take its deadline
	// for a client that went away.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if err := decode(body, into); err != nil {
		reply(w, 0, Answer{}, err)
		return false
	}
	return true
}

// body reads a body. One that is large waits until few are read, and is one of these
// until done is called.
func (e *Episodes) body(w http.ResponseWriter, r *http.Request) (body []byte, done func(), err error) {
	done = func() {}
	if body, err = io.ReadAll(io.LimitReader(r.Body, smallBody)); err != nil || len(body) < smallBody {
		return body, done, err
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // waiting is not the client's; a recorder in a test has none
	select {
	case e.large <- struct{}{}:
	case <-r.Context().Done():
		return nil, done, r.Context().Err()
	case <-e.ctx.Done():
		return nil, done, errClosing
	}
	_ = control.SetReadDeadline(time.Now().Add(web.ReadTimeout))
	whole := bytes.NewBuffer(body)
	_, err = whole.ReadFrom(r.Body)
	return whole.Bytes(), func() { <-e.large }, err
}

// reply sends an answer, or what kept it from being one.
func reply(w http.ResponseWriter, status int, a Answer, err error) {
	var (
		wrong    *BadError
		invalid  *kernelwright.InvalidTaskError
		conflict *ConflictError
		gone     *GoneError
		full     *FullError
	)
	switch {
	case err == nil:
		send(w, status, a)
	case errors.As(err, &wrong):
		refuse(w, http.StatusBadRequest, wrong.Text, wrong.Hint)
	case errors.As(err, &invalid):
		send(w, http.StatusUnprocessableEntity, problem{Error: "the reference is no task: " + invalid.Reason, Hint: invalid.Hint, Traceback: invalid.Traceback})
	case errors.As(err, &conflict):
		refuse(w, http.StatusConflict, conflict.Text, conflict.Hint)
	case errors.As(err, &gone):
		refuse(w, http.StatusGone, gone.Error(), "begin another one")
	case errors.Is(err, store.ErrNotFound):
		refuse(w, http.StatusNotFound, err.Error(), "an episode's number is in the answer that began it")
	case errors.As(err, &full):
		w.Header().Set("Retry-After", fullRetry)
		refuse(w, http.StatusServiceUnavailable, full.Error(), "end some, or raise --max-open")
	case errors.Is(err, errClosing):
		w.Header().Set("Retry-After", fullRetry)
		refuse(w, http.StatusServiceUnavailable, err.Error(), "ask again once the server was started again")
	default: // where who asked is gone, nobody reads it
		w.Header().Set("Retry-After", fullRetry)
		send(w, http.StatusServiceUnavailable, problem{Error: err.Error(), Hint: "it says nothing about any candidate: `kernelwright doctor` says what this machine lacks", Infrastructure: true})
	}
}

// problem is an answer that is none.
type problem struct {
	Error     string `json:"error"`
	Hint      string `json:"hint,omitempty"`
	Traceback string `json:"traceback,omitempty"`
	// Infrastructure: the machinery failed. It says nothing about what was sent.
	Infrastructure bool `json:"infrastructure,omitempty"`
}

func refuse(w http.ResponseWriter, status int, text, hint string) {
	send(w, status, problem{Error: text, Hint: hint})
}

func send(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"error": "the answer has no JSON form"}`)
	}
	// A recorder in a test has no deadlines.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}
