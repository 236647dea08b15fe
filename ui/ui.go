// Package ui is the daemon's web pages: what the record has, for people. They are made
// on the server, load nothing from elsewhere, and are read without scripts. docs/ui.md
// says what is on which page.
package ui

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"html/template"
	"io/fs"
	"log/slog"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/web"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// Limits of a request and its answer.
const (
	maxUpload  = 1 << 20 // bytes of a reference
	maxAnswers = 32      // pages that are made at once
	answerTime = 20 * time.Second
	// promoteTime is for changes of policies, which the API bounds: one that is to serve is
	// loaded first.
	promoteTime = 11 * time.Minute
	// retryAfter is after how many seconds a browser that was not served may ask again.
	retryAfter = "5"
)

// Options are what the pages need. Store and API are required.
type Options struct {
	Store   *store.Store
	Version string // of kernelwright
	// API answers every path that is no page. A session's requests to it are made with
	// the token that the session was opened with.
	API http.Handler
	// Token opens a session that may change things, ReadToken one that reads. Without a
	// Token there are no sessions: who comes over a loopback address may do all.
	Token, ReadToken string
	// Run gathers what is recorded of a run; its talk where that is asked for.
	Run func(ctx context.Context, id int64, talk bool) (report.Data, error)
	// Bench gathers what is recorded of a bench.
	Bench func(ctx context.Context, id int64) (report.Bench, error)
	// Shown is the status of a run as it is shown; nil: as it is recorded.
	Shown func() func(kernelwright.Run) kernelwright.RunStatus
	// Curves returns the metrics of each step that a stage's programs have left, by the
	// program's part; nil: there are none.
	Curves func(store.Stage) ([]Curve, error)
	// Devices is how the devices are just now; nil: nobody knows.
	Devices func(context.Context) []Gauges
	// Budget is what a day may cost.
	Budget Budget
	Log    *slog.Logger
}

// Budget is what a day may cost; 0: no limit.
type Budget struct {
	USD    float64
	Tokens int64
	Calls  int64
}

// Gauges is how a device is just now; what is nil is not known.
type Gauges struct {
	Device, Name string // cpu, cuda:0; as its driver calls it
	Load         *float64
	TemperatureC *float64
	ClockMHz     *float64
	MemoryUsed   *int64
}

// Curve is the metrics of the steps of one program of a stage.
type Curve struct {
	Part  string
	Steps []map[string]float64
}

// UI serves the pages. It is safe for concurrent use.
type UI struct {
	o        Options
	mux      *http.ServeMux
	pages    map[string]*template.Template
	sessions sessions
	answers  chan struct{}
	statics  map[string]static
	benches  finished[report.BenchPage]
	act      func() actions
}

// New returns the pages of a store that is open.
func New(o Options) *UI {
	u := &UI{o: o, mux: http.NewServeMux(), answers: make(chan struct{}, maxAnswers), sessions: newSessions()}
	u.loadStatics()
	u.loadTemplates()
	u.act = sync.OnceValue(u.offered)
	u.now()
	u.actions()
	u.run()
	u.history()
	u.record()
	u.training()
	u.spending()
	u.login()
	u.mux.HandleFunc("GET /static/{name}", u.static)
	u.mux.Handle("/", http.HandlerFunc(u.nowhere))
	return u
}

// apiPath reports whether a path is the API's.
func apiPath(p string) bool {
	for _, own := range []string{"/healthz", "/readyz", "/metrics", "/openapi.json"} {
		if p == own {
			return true
		}
	}
	return p == "/api" || strings.HasPrefix(p, "/api/") || strings.HasPrefix(p, "/v1/") // the latter is episodes
}

// ServeHTTP answers who may ask, and keeps within the limits.
func (u *UI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session, known := u.sessions.of(r)
	if apiPath(r.URL.Path) {
		if known && r.Header.Get("Authorization") == "" {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+session.token)
		}
		u.o.API.ServeHTTP(w, r)
		return
	}
	secure(w.Header())
	who := visitor{Write: true}
	if u.o.Token != "" {
		who = visitor{Session: known, Write: known && session.write}
	}
	switch {
	case !sameOrigin(r):
		u.refuse(w, r, who, http.StatusForbidden, "Requests of pages from elsewhere are not answered.", "Open the page that this server has.")
		return
	case u.o.Token == "" && !web.Loopback(r.Host):
		u.refuse(w, r, who, http.StatusForbidden, "The host of this address is no loopback address.", "Name 127.0.0.1, or give the daemon a token.")
		return
	case u.o.Token != "" && !known && !open(r.URL.Path):
		if web.Reads(r) && r.Header.Get("HX-Request") == "" {
			http.Redirect(w, r, "/login?next="+template.URLQueryEscaper(r.URL.RequestURI()), http.StatusSeeOther)
			return
		}
		w.Header().Set("HX-Refresh", "true")
		u.refuse(w, r, who, http.StatusUnauthorized, "You are not signed in.", "Sign in at /login.")
		return
	case !web.Reads(r) && !who.Write && !open(r.URL.Path):
		u.refuse(w, r, who, http.StatusForbidden, "This session may only read.", "Sign in with the token that may change things.")
		return
	}
	select {
	case u.answers <- struct{}{}:
		defer func() { <-u.answers }()
	default:
		w.Header().Set("Retry-After", retryAfter)
		u.refuse(w, r, who, http.StatusServiceUnavailable, "Too many pages are being made at once.", "Load the page again in a moment.")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxUpload+64<<10)
	within := answerTime
	if !web.Reads(r) && strings.HasPrefix(r.URL.Path, "/policies/") {
		within = promoteTime
	}
	ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), visitorKey{}, who), within)
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(within + answerTime)) // a recorder in a test has none
	u.mux.ServeHTTP(w, r.WithContext(ctx))
}

// open reports whether a path is for who has no session, too.
func open(p string) bool { return p == "/login" || p == "/logout" || strings.HasPrefix(p, "/static/") }

// sameOrigin is web.SameOrigin, but for links that lead here: to open a page is safe.
func sameOrigin(r *http.Request) bool {
	if r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
		return true
	}
	return web.SameOrigin(r)
}

// policy lets a page load what this server has, run no script but its own, and be in no
// frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func secure(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// visitor is who asks for a page.
type visitor struct {
	Session bool // signed in
	Write   bool
}

type visitorKey struct{}

func visitorOf(r *http.Request) visitor {
	v, _ := r.Context().Value(visitorKey{}).(visitor)
	return v
}

// view is a page with what is round it.
type view struct {
	Title, At string // At is the entry of the menu
	visitor
	Version string
	Assets  string // of this build
	Events  string // the address of those that the page follows; all of them where it is empty
	Act     actions
	Body    any
}

// pageError is an answer that is no page of the record.
type pageError struct {
	status     int
	said, hint string
}

func (e *pageError) Error() string { return e.said }

func missing(said, hint string) error { return &pageError{http.StatusNotFound, said, hint} }
func bad(said, hint string) error     { return &pageError{http.StatusBadRequest, said, hint} }

// get mounts a page: its template's name, and what makes its body.
func (u *UI) get(pattern, name string, build func(*http.Request) (view, error)) {
	u.mux.HandleFunc("GET "+pattern, func(w http.ResponseWriter, r *http.Request) {
		v, err := build(r)
		if err != nil {
			u.fail(w, r, err)
			return
		}
		u.write(w, r, name, http.StatusOK, v)
	})
}

// post mounts a change. It answers with where to go on.
func (u *UI) post(pattern string, do func(*http.Request) (next string, err error)) {
	u.mux.HandleFunc("POST "+pattern, func(w http.ResponseWriter, r *http.Request) {
		next, err := do(r)
		if err != nil {
			u.fail(w, r, err)
			return
		}
		http.Redirect(w, r, next, http.StatusSeeOther)
	})
}

// write sends a page with a tag, or that the browser has it.
func (u *UI) write(w http.ResponseWriter, r *http.Request, name string, status int, v view) {
	v.visitor, v.Version, v.Act, v.Assets = visitorOf(r), u.o.Version, u.act(), u.statics["style.css"].tag
	var b bytes.Buffer
	t := u.pages[name]
	if err := t.Execute(&b, v); err != nil {
		u.log(r, err)
		http.Error(w, "the page could not be made", http.StatusServiceUnavailable)
		return
	}
	digest := sha256.Sum256(b.Bytes())
	tag := `"` + hex.EncodeToString(digest[:16]) + `"`
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "private, no-cache")
	h.Set("Vary", "Cookie, HX-Request")
	if status == http.StatusOK {
		h.Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // who went away reads nothing
}

func isTooLarge(err error) bool { return errors.As(err, new(*http.MaxBytesError)) }

// fail answers an error with a page.
func (u *UI) fail(w http.ResponseWriter, r *http.Request, err error) {
	var p *pageError
	switch {
	case errors.As(err, &p):
	case isTooLarge(err):
		p = &pageError{http.StatusRequestEntityTooLarge, "What was sent is too large.", "A reference has at most 1 MiB."}
	case errors.Is(err, store.ErrNotFound):
		p = &pageError{http.StatusNotFound, "This is not in the record.", "The history has what there is."}
	default:
		if r.Context().Err() == nil {
			u.log(r, err)
		}
		w.Header().Set("Retry-After", retryAfter)
		p = &pageError{http.StatusServiceUnavailable, "The record could not be asked in time.", "Load the page again in a moment; the daemon's log says more."}
	}
	u.refuse(w, r, visitorOf(r), p.status, p.said, p.hint)
}

func (u *UI) log(r *http.Request, err error) {
	if u.o.Log != nil {
		u.o.Log.Warn("a page could not be made", "path", r.URL.Path, "error", err)
	}
}

func (u *UI) refuse(w http.ResponseWriter, r *http.Request, who visitor, status int, said, hint string) {
	r = r.WithContext(context.WithValue(r.Context(), visitorKey{}, who))
	u.write(w, r, "error", status, view{Title: http.StatusText(status), Body: pageError{status, said, hint}})
}

// Said and Hint are for the page of an error.
func (e pageError) Said() string { return e.said }

// Hint says what to do.
func (e pageError) Hint() string { return e.hint }

func (u *UI) nowhere(w http.ResponseWriter, r *http.Request) {
	u.fail(w, r, missing("There is no such page.", "The menu has all there are."))
}

//go:embed templates
var templateFiles embed.FS

// loadTemplates parses one set a page: the frame, what pages share, and the page.
func (u *UI) loadTemplates() {
	files, err := fs.Glob(templateFiles, "templates/*.html.tmpl")
	if err != nil {
		panic(err) // the pattern is ours
	}
	u.pages = map[string]*template.Template{}
	base := template.Must(report.Templates("page").Funcs(funcs).ParseFS(templateFiles, "templates/frame.html.tmpl", "templates/parts.html.tmpl"))
	for _, f := range files {
		name := strings.TrimSuffix(path.Base(f), ".html.tmpl")
		if name == "frame" || name == "parts" {
			continue
		}
		set := template.Must(template.Must(base.Clone()).ParseFS(templateFiles, f))
		if t := set.Lookup("fragment"); t != nil {
			u.pages[name] = t
		} else {
			u.pages[name] = set.Lookup("frame")
		}
	}
}

//go:embed static
var staticFiles embed.FS

// static is a file that pages load.
type static struct {
	body []byte
	kind string
	tag  string
}

func (u *UI) loadStatics() {
	u.statics = map[string]static{}
	entries, err := staticFiles.ReadDir("static")
	if err != nil {
		panic(err) // it is embedded
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		body, err := staticFiles.ReadFile("static/" + e.Name())
		if err != nil {
			panic(err)
		}
		if e.Name() == "style.css" {
			body = append([]byte(report.Style), body...)
		}
		digest := sha256.Sum256(body)
		u.statics[e.Name()] = static{body, mime.TypeByExtension(path.Ext(e.Name())), hex.EncodeToString(digest[:6])}
	}
}

func (u *UI) static(w http.ResponseWriter, r *http.Request) {
	f, ok := u.statics[r.PathValue("name")]
	if !ok {
		u.nowhere(w, r)
		return
	}
	w.Header().Set("Content-Type", f.kind)
	w.Header().Set("Cache-Control", "private, max-age=86400")
	w.Header().Set("ETag", `"`+f.tag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
}
