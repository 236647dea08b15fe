// Package api is the HTTP API of the daemon: what the record has, as JSON in the form of
// --json, what happens, as it happens, and changes of the queue. Its OpenAPI document is
// made of the types that its handlers take and return. docs/api.md is for its users.
package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/outward"
	"github.com/kernelwright/kernelwright/internal/web"
	"github.com/kernelwright/kernelwright/store"
)

// Limits of a request and its answer.
const (
	maxBody    = 2 << 20 // bytes
	maxAnswers = 64      // that are made at once
	maxChanges = 16      // that are made at once: a body that comes slowly keeps no reader waiting
	// answerTime is how long making an answer, and then writing it, may take.
	answerTime = 20 * time.Second
	// retryAfter is after how many seconds a client that was not served may ask again.
	retryAfter = "5"
)

// Options are what an API needs. Store is required.
type Options struct {
	Store   *store.Store
	Version string // of kernelwright
	// Token is asked of every request where it is not empty. Without one, a request is
	// answered that names a loopback address as its host.
	Token string
	// ReadToken is for requests that change nothing. It needs a Token beside it.
	ReadToken string
	// Shown is the status of a run as it is shown; nil: as it is recorded.
	Shown func() func(kernelwright.Run) kernelwright.RunStatus
	// Folder is the watched one that submitted references are written into, and Patterns
	// are those of the watcher. Empty: none are taken.
	Folder   string
	Patterns []string
	// Policies changes which policy serves; nil: nothing does.
	Policies Policies
	// Episodes serves what is below /v1/, with limits of its own; nil: nothing does.
	Episodes http.Handler
	// Sample looks at devices; nil: nobody is told of them.
	Sample func(context.Context) []Sample
	Log    *slog.Logger
}

// API serves the record. It is safe for concurrent use.
type API struct {
	o       Options
	mux     *http.ServeMux
	huma    huma.API
	answers limit // of what reads
	limits  map[string]limit
	hub     *hub
	counts  counter

	mu      sync.Mutex
	devices []kernelwright.Device // that take runs; nil: the daemon is not ready
}

// limit is what the answers of some routes are kept within.
type limit struct {
	places chan struct{} // has one for each that is made
	body   int64         // bytes
	time   time.Duration // 0: they do not end
}

// New returns the API of a store that is open. Close ends it.
func New(o Options) *API {
	listeners, changes := make(chan struct{}, maxListeners), make(chan struct{}, maxChanges)
	a := &API{
		o: o, mux: http.NewServeMux(), hub: newHub(o.Store, o.Sample), answers: limit{make(chan struct{}, maxAnswers), maxBody, answerTime},
		limits: map[string]limit{
			"":            {changes, maxBody, answerTime},
			submitPattern: {changes, maxUpload, answerTime},
			"POST /api/v1/policies/{version}/promote": {changes, maxBody, promoteTime},
			"GET " + eventsPath:                       {listeners, maxBody, 0},
		},
	}
	format := huma.Format{Marshal: marshal, Unmarshal: json.Unmarshal}
	a.huma = humago.New(a.mux, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI:    "3.1.0",
			Info:       &huma.Info{Title: "kernelwright", Version: o.Version, Description: "What a daemon of kernelwright has recorded, and does."},
			Components: &huma.Components{Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer), SecuritySchemes: map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}},
		},
		Formats: map[string]huma.Format{"application/json": format, "json": format}, DefaultFormat: "application/json",
		RejectUnknownQueryParameters: true,
	})
	a.health()
	a.runs()
	a.rounds()
	a.tasks()
	a.texts()
	a.lessons()
	a.benches()
	a.training()
	a.machine()
	a.events()
	a.changes()
	outwardSchemas(a.huma.OpenAPI().Components.Schemas)
	completeResponses(a.huma.OpenAPI())
	document, err := json.MarshalIndent(a.huma.OpenAPI(), "", "  ")
	if err != nil { // types of ours alone: cannot fail
		panic(err)
	}
	document = append(document, '\n')
	a.mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(document)
	})
	return a
}

// Close ends what is told to those who listen. It may be called again.
func (a *API) Close() { a.hub.close() }

// Progress tells of what goes on within a round. It waits for nobody.
func (a *API) Progress(p Progress) { a.hub.tell(EventProgress, p.Run, p) }

// Step tells of a step of training. It waits for nobody.
func (a *API) Step(s Step) { a.hub.tell(EventStep, 0, s) }

// Devices is how the devices are just now, as listeners are told.
func (a *API) Devices(ctx context.Context) []Sample { return a.hub.devices(ctx) }

// Ready says which devices take runs now.
func (a *API) Ready(devices []kernelwright.Device) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.devices = append([]kernelwright.Device{}, devices...)
}

func (a *API) ready() []kernelwright.Device {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.devices
}

// marshal writes a value in its outward form.
func marshal(w io.Writer, v any) error {
	b, err := json.Marshal(outward.Of(v))
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// get mounts a handler that reads.
func get[I, O any](a *API, path, summary string, handler func(context.Context, *I) (*O, error)) {
	huma.Register(a.huma, operation(http.MethodGet, path, summary), func(ctx context.Context, in *I) (*O, error) {
		out, err := handler(ctx, in)
		return out, a.problem(ctx, err)
	})
}

// operationName makes a path into a name for generated clients.
var operationName = strings.NewReplacer("/api/v1", "", "/", "-", "{", "", "}", "")

func operation(method, path, summary string) huma.Operation {
	return huma.Operation{
		Method: method, Path: path, Summary: summary, OperationID: strings.ToLower(method) + operationName.Replace(path), MaxBodyBytes: maxBody,
		Errors: []int{http.StatusBadRequest, http.StatusNotFound, http.StatusServiceUnavailable}, Security: []map[string][]string{{"token": {}}},
	}
}

// answer is what a handler that lists or shows something returns.
type answer[T any] struct {
	Body T
}

func say[T any](v T, err error) (*answer[T], error) {
	if err != nil {
		return nil, err
	}
	return &answer[T]{v}, nil
}

// ServeHTTP answers who may ask, and keeps within the limits.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	a.counts.requests.Add(1)
	if !a.admit(w, r) {
		return
	}
	if a.o.Episodes != nil && strings.HasPrefix(r.URL.Path, "/v1/") {
		a.o.Episodes.ServeHTTP(w, r)
		return
	}
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		refuse(w, http.StatusBadRequest, "the parameters cannot be read: "+err.Error(), "write each as name=value, with % and & escaped")
		return
	}
	_, pattern := a.mux.Handler(r)
	within := a.within(pattern, r)
	select {
	case within.places <- struct{}{}:
		defer func() { <-within.places }()
	default:
		w.Header().Set("Retry-After", retryAfter)
		refuse(w, http.StatusServiceUnavailable, fmt.Sprintf("%d answers are being made", cap(within.places)), "ask again")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, within.body)
	if within.time == 0 {
		a.mux.ServeHTTP(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), within.time)
	defer cancel()
	kept := &keeper{header: w.Header(), status: http.StatusOK}
	a.mux.ServeHTTP(kept, r.WithContext(ctx))
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime)) // a recorder in a test has none
	if pattern == "" && kept.status >= 400 {
		refuse(w, kept.status, fmt.Sprintf("there is no %s %.100s here", r.Method, r.URL.Path), "/openapi.json has what there is")
		return
	}
	kept.send(w, r)
}

// admit reports whether who asks may, and answers who may not.
func (a *API) admit(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case !web.SameOrigin(r):
		refuse(w, http.StatusForbidden, "requests of pages from elsewhere are not answered", "open the page that this server has")
	case a.o.Token == "" && !web.Loopback(r.Host):
		refuse(w, http.StatusForbidden, fmt.Sprintf("the host %.100q is no loopback address", r.Host), "name 127.0.0.1, or give the daemon a token")
	case a.o.Token != "" && !web.Bearer(r, a.o.Token) && (a.o.ReadToken == "" || !web.Reads(r) || !web.Bearer(r, a.o.ReadToken)):
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, http.StatusUnauthorized, "the token is missing, or another one, or may not change anything", "send it as Authorization: Bearer TOKEN")
	default:
		return true
	}
	return false
}

// within is the limit of a route.
func (a *API) within(pattern string, r *http.Request) limit {
	if l, own := a.limits[pattern]; own && pattern != "" {
		return l
	}
	if web.Reads(r) {
		return a.answers
	}
	return a.limits[""]
}

// keeper keeps an answer until it is whole, so that it gets a tag.
type keeper struct {
	header http.Header
	status int
	body   []byte
}

func (k *keeper) Header() http.Header         { return k.header }
func (k *keeper) WriteHeader(status int)      { k.status = status }
func (k *keeper) Write(b []byte) (int, error) { k.body = append(k.body, b...); return len(b), nil }

// send sends what was kept, or that the client has it.
func (k *keeper) send(w http.ResponseWriter, r *http.Request) {
	if k.status == http.StatusOK && web.Reads(r) {
		digest := sha256.Sum256(k.body)
		tag := `"` + hex.EncodeToString(digest[:16]) + `"`
		w.Header().Set("ETag", tag)
		w.Header().Set("Cache-Control", "private, no-cache")
		if has(r.Header.Values("If-None-Match"), tag) {
			w.Header().Del("Content-Type")
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	w.WriteHeader(k.status)
	_, _ = w.Write(k.body) // who went away reads nothing
}
