package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright/report"
)

// actions are what the API can do, so that pages offer nothing that it cannot.
type actions struct {
	Submit, Cancel, Retry, Pause, Prioritise, PauseQueue, Promote, Rollback, Events bool
}

// offered asks the API for its document once.
func (u *UI) offered() actions {
	var document struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if json.Unmarshal(u.ask("/openapi.json").body.Bytes(), &document) != nil {
		return actions{}
	}
	has := func(method, p string) bool { return document.Paths["/api/v1"+p][method] != nil }
	return actions{
		Submit: has("post", "/tasks"), Cancel: has("post", "/runs/{run}/cancel"), Retry: has("post", "/runs/{run}/retry"), Pause: has("post", "/runs/{run}/pause"),
		Prioritise: has("put", "/runs/{run}/priority"), PauseQueue: has("post", "/queue/pause"),
		Promote: has("post", "/policies/{version}/promote"), Rollback: has("post", "/policies/rollback"), Events: has("get", "/events"),
	}
}

// ready reports whether devices take runs.
func (u *UI) ready() bool { return u.ask("/readyz").status == http.StatusOK }

// ask reads from the API for the pages themselves.
func (u *UI) ask(path string) *kept {
	answer := &kept{header: http.Header{}, status: http.StatusOK}
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://127.0.0.1"+path, http.NoBody)
	if err != nil {
		panic(err) // the paths are ours
	}
	r.Header.Set("Authorization", "Bearer "+u.o.Token)
	u.o.API.ServeHTTP(answer, r)
	return answer
}

// kept is an answer of the API to this server's own request.
type kept struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *kept) Header() http.Header         { return k.header }
func (k *kept) WriteHeader(status int)      { k.status = status }
func (k *kept) Write(b []byte) (int, error) { return k.body.Write(b) }

// change has the API change something for who asks, with the token of their session. The
// API's own refusal is what a page says.
func (u *UI) change(r *http.Request, method, p string, body any) (answer map[string]any, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	q, err := http.NewRequestWithContext(r.Context(), method, "http://"+r.Host+"/api/v1"+p, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	q.RemoteAddr, q.TLS, q.RequestURI = r.RemoteAddr, r.TLS, q.URL.RequestURI()
	q.Header.Set("Content-Type", "application/json")
	if s, known := u.sessions.of(r); known {
		q.Header.Set("Authorization", "Bearer "+s.token)
	}
	k := &kept{header: http.Header{}, status: http.StatusOK}
	u.o.API.ServeHTTP(k, q)
	if k.status >= http.StatusBadRequest {
		var said struct{ Error, Hint string }
		if json.Unmarshal(k.body.Bytes(), &said) != nil || said.Error == "" {
			said.Error = "it was refused with status " + strconv.Itoa(k.status)
		}
		return nil, &pageError{k.status, sentence(said.Error), sentence(said.Hint)}
	}
	if k.body.Len() > 0 {
		if err := json.Unmarshal(k.body.Bytes(), &answer); err != nil {
			return nil, fmt.Errorf("the answer of %s %s: %w", method, p, err)
		}
	}
	return answer, nil
}

// sentence begins with a capital and ends with a full stop.
func sentence(s string) string {
	if s = report.Line(s); s == "" {
		return ""
	}
	s = strings.ToUpper(s[:1]) + s[1:]
	if !strings.ContainsRune(".!?…", rune(s[len(s)-1])) {
		s += "."
	}
	return s
}

// actions has the routes that change something.
func (u *UI) actions() {
	u.post("/tasks", u.submit)
	for _, what := range []string{"cancel", "pause", "resume", "retry"} {
		u.post("/runs/{run}/"+what, func(r *http.Request) (string, error) {
			id, err := number(r, "run")
			if err != nil {
				return "", err
			}
			answer, err := u.change(r, http.MethodPost, fmt.Sprintf("/runs/%d/%s", id, what), struct{}{})
			if what == "retry" && err == nil {
				return runOf(answer), nil
			}
			return local(r.PostFormValue("back")), err
		})
	}
	u.post("/runs/{run}/priority", func(r *http.Request) (string, error) {
		id, err := number(r, "run")
		if err != nil {
			return "", err
		}
		priority, err := strconv.Atoi(r.PostFormValue("priority"))
		if err != nil {
			return "", bad("A priority is a whole number.", "Higher goes first.")
		}
		_, err = u.change(r, http.MethodPut, fmt.Sprintf("/runs/%d/priority", id), map[string]int{"priority": priority})
		return "/", err
	})
	for _, what := range []string{"pause", "resume"} {
		u.post("/queue/"+what, func(r *http.Request) (string, error) {
			_, err := u.change(r, http.MethodPost, "/queue/"+what, struct{}{})
			return "/", err
		})
	}
}

// runOf is the page of the run that an answer names, or the first page.
func runOf(answer map[string]any) string {
	if run, ok := answer["run"].(map[string]any); ok {
		answer = run
	}
	for _, name := range []string{"run", "id"} {
		if n, ok := answer[name].(float64); ok && n > 0 {
			return fmt.Sprintf("/runs/%.0f", n)
		}
	}
	return "/"
}

// submit hands a reference over that was sent as a file.
func (u *UI) submit(r *http.Request) (string, error) {
	if err := r.ParseMultipartForm(maxUpload); err != nil {
		if isTooLarge(err) {
			return "", err
		}
		return "", bad("The form could not be read.", "Send a Python file of at most 1 MiB.")
	}
	defer func() { _ = r.MultipartForm.RemoveAll() }() // they are temporary in any case
	f, head, err := r.FormFile("reference")
	if err != nil {
		return "", bad("No file was sent.", "Choose a Python file that defines Model, get_inputs() and get_init_inputs().")
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxUpload+1))
	if err != nil {
		return "", err
	}
	name := path.Base(strings.ReplaceAll(head.Filename, "\\", "/"))
	switch {
	case len(text) > maxUpload:
		return "", &pageError{http.StatusRequestEntityTooLarge, "The file is too large.", "A reference has at most 1 MiB."}
	case !utf8.Valid(text):
		return "", bad("The file is no text in UTF-8.", "Choose a Python file.")
	}
	answer, err := u.change(r, http.MethodPost, "/tasks", map[string]string{"name": name, "source": string(text)})
	if err != nil {
		return "", err
	}
	if next := runOf(answer); next != "/" {
		return next, nil
	}
	return "/?sent=" + url.QueryEscape(name), nil
}
