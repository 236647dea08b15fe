package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"context"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/task"
)

const reference = "class Model: pass\n"

// accepting is a world that takes references into a folder.
func accepting(t *testing.T, change func(*Options)) (*world, string) {
	t.Helper()
	dir := t.TempDir()
	return newWorld(t, func(o *Options) {
		o.Folder, o.Patterns = dir, []string{"*.py"}
		if change != nil {
			change(o)
		}
	}), dir
}

// form is a form with a file, and its content type.
func form(t testing.TB, field, name, text string) (body, kind string) {
	t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	part, err := m.CreateFormFile(field, name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = io.WriteString(part, text); err != nil {
		t.Fatal(err)
	}
	if err = m.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), m.FormDataContentType()
}

// A reference is written whole into the watched folder, once, in JSON and as a form; an
// other text of its name takes its place where that is said alone.
func TestSubmit(t *testing.T) {
	w, dir := accepting(t, nil)
	object := func(name, source string) string {
		b, err := json.Marshal(upload{name, source})
		w.check(err)
		return string(b)
	}
	whole, kind := form(t, "file", "b.py", reference)
	for i, c := range []struct {
		query, body, kind string
		code              int
		created           bool
		file, text        string
	}{
		{"", object("a.py", reference), "application/json", 201, true, "a.py", reference},
		{"", object("a.py", reference), "application/json", 200, false, "a.py", reference},
		{"", whole, kind, 201, true, "b.py", reference},
		{"", object("a.py", "# other\n"), "application/json", 409, false, "a.py", reference},
		{"?replace=true", object("a.py", "# other\n"), "application/json; charset=utf-8", 201, true, "a.py", "# other\n"},
		{"", object("ünï cöde.py", reference), "application/json", 201, true, "ünï cöde.py", reference},
	} {
		r, body := w.ask("POST", "/api/v1/tasks"+c.query, c.body, "Content-Type", c.kind)
		var got struct {
			Path, SHA256, Runs string
			Created            bool
			Run                *int64
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || r.StatusCode != c.code {
			t.Errorf("%d: %s %s", i, r.Status, body)
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, c.file))
		if err != nil || string(text) != c.text {
			t.Errorf("%d: %q, %v", i, text, err)
		}
		if c.code < 300 && (got.Created != c.created || got.Path != filepath.Join(dir, c.file) || got.SHA256 != kernelwright.HashText(c.text) || got.Run != nil) {
			t.Errorf("%d: %+v", i, got)
		}
		if c.code < 300 {
			if r, _ := w.ask("GET", got.Runs, ""); r.StatusCode != 200 {
				t.Errorf("%s: %s", got.Runs, r.Status)
			}
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("%v, %v", entries, err)
	}
	// The run is in the answer where there is one already.
	path := filepath.Join(dir, "b.py")
	w.check(w.store.SaveFile(t.Context(), store.File{Path: path, Hash: kernelwright.HashText(reference), RunID: 2}))
	if _, body := w.ask("POST", "/api/v1/tasks", whole, "Content-Type", kind); !strings.Contains(body, `"run":2`) {
		t.Error(body)
	}
}

// What is no reference, or has no name for one, leaves nothing behind.
func TestBadSubmissions(t *testing.T) {
	w, dir := accepting(t, nil)
	w.check(os.Mkdir(filepath.Join(dir, "folder.py"), 0o700))
	w.check(os.Symlink("/etc/passwd", filepath.Join(dir, "link.py")))
	named := func(name string) string { b, _ := json.Marshal(upload{name, reference}); return string(b) }
	form1, kind := form(t, "file", "../x.py", reference)
	field, _ := form(t, "other", "x.py", reference)
	_, fieldKind := form(t, "other", "x.py", reference)
	two := strings.Replace(form1, "../x.py", "x.py", 1)
	cut := two[:len(two)-20]
	for i, c := range []struct {
		body, kind string
		code       int
		says       string
	}{
		{named("../x.py"), "", 400, "is a path"}, {named("/etc/x.py"), "", 400, "is a path"}, {named(`a\b.py`), "", 400, "is a path"}, {named(".."), "", 400, ""},
		{named(""), "", 400, "no name"}, {named(".x.py"), "", 400, "dot"}, {named("x.txt"), "", 400, "watch.patterns"}, {named("x.best.py"), "", 400, "own results"},
		{named("a\nb.py"), "", 400, "cannot be printed"}, {named("a\u202eb.py"), "", 400, "cannot be printed"}, {named(strings.Repeat("x", 300) + ".py"), "", 400, "200 bytes"},
		{`{"name": "a\u0000.py", "source": "x"}`, "", 400, "cannot be printed"},
		{form1, kind, 400, "is a path"}, {field, fieldKind, 400, "no file"}, {cut, kind, 400, "cut short"}, {two, "multipart/form-data", 415, "neither"},
		{two, "multipart/form-data; boundary=other", 400, "no file"},
		{"", "", 400, "required"}, {"{", "", 400, "JSON"}, {"[]", "", 400, "JSON"}, {`{"name": "x.py"}`, "", 400, "empty"}, {`{"name": "x.py", "source": "x", "more": 1}`, "", 400, "JSON"},
		{named("x.py") + named("y.py"), "", 400, "JSON"}, {named("x.py"), "text/plain", 415, "neither"}, {named("x.py"), "multipart/form-data; boundary=" + strings.Repeat("x", 2000), 400, "Content-Type"},
		{named("folder.py"), "", 409, "no file"}, {named("link.py"), "", 409, "no file"},
		{`{"name": "x.py", "source": "` + strings.Repeat("x", task.MaxBytes+1) + `"}`, "", 413, "more than"},
		{strings.Repeat(" ", maxUpload+1), "", 413, "too large"},
		{`{"name": "x.py", "source": "a\u0000b"}`, "", 400, "NUL"},
	} {
		if c.kind == "" {
			c.kind = "application/json"
		}
		r, body := w.ask("POST", "/api/v1/tasks", c.body, "Content-Type", c.kind)
		if r.StatusCode != c.code || !strings.Contains(body, c.says) || !strings.Contains(body, `"hint"`) {
			t.Errorf("%d, %.60q: %s %.300s, want %d with %q", i, c.body, r.Status, body, c.code, c.says)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	if r, body := w.ask("POST", "/api/v1/tasks?replace=true", named("folder.py"), "Content-Type", "application/json"); r.StatusCode != 409 {
		t.Errorf("%s %s", r.Status, body)
	}
}

// A body without an end is refused before it is there.
func TestAnUploadWithoutEnd(t *testing.T) {
	w, dir := accepting(t, nil)
	q, err := http.NewRequestWithContext(t.Context(), "POST", w.http.URL+"/api/v1/tasks", io.LimitReader(endless{}, 1<<30))
	w.check(err)
	q.Header.Set("Content-Type", "application/json")
	r, err := w.http.Client().Do(q)
	if err == nil { // else the connection was closed while it was sent
		r.Body.Close()
		if r.StatusCode != http.StatusRequestEntityTooLarge {
			t.Error(r.Status)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// The queue is changed by who may write, each change may be sent again, and what does not
// fit is a conflict.
func TestChangesOfTheQueue(t *testing.T) {
	const token, read = "0123456789abcdef", "fedcba9876543210"
	w := newWorld(t, func(o *Options) { o.Token, o.ReadToken = token, read })
	w.check(w.store.SaveFile(t.Context(), store.File{Path: "/x/w.py"}))
	waits, err := w.store.Enqueue(t.Context(), kernelwright.Run{TaskName: "w", Path: "/x/w.py"}, 0, store.WithReference("x"))
	w.check(err)
	at := func(verb string) string { return fmt.Sprintf("/api/v1/runs/%d/%s", waits.ID, verb) }
	for _, c := range []struct {
		method, path, body string
		code               int
		says               string
	}{
		{"PUT", at("priority"), `{"priority": 7}`, 200, `"status":"queued"`}, {"PUT", at("priority"), `{"priority": 7}`, 200, ""},
		{"PUT", at("priority"), `{"priority": 1001}`, 400, "priority"}, {"PUT", at("priority"), `{"priority": "x"}`, 400, "priority"}, {"PUT", at("priority"), `{}`, 400, "priority"}, {"PUT", at("priority"), ``, 400, "body"},
		{"PUT", at("priority"), `{"priority": 1e99}`, 400, ""}, {"PUT", at("priority"), "\xff\xfe", 400, ""},
		{"POST", at("pause"), "", 200, `"hold":"paused"`}, {"POST", at("pause"), "", 200, `"hold":"paused"`}, {"POST", at("retry"), "", 200, `"status":"queued"`},
		{"POST", at("resume"), "", 200, `"hold":null`}, {"POST", at("resume"), "", 200, ""},
		{"POST", "/api/v1/queue/pause", "", 200, `"paused":true`}, {"GET", "/api/v1/queue", "", 200, `"paused":true`}, {"POST", "/api/v1/queue/resume", "", 200, `"paused":false`},
		{"POST", at("cancel"), "", 200, `"status":"cancelled"`}, {"POST", at("cancel"), "", 200, `"status":"cancelled"`}, {"POST", at("pause"), "", 409, "has ended"},
		{"PUT", at("priority"), `{"priority": 7}`, 409, "has ended"},
		{"POST", at("retry"), "", 201, `"status":"queued"`}, {"POST", at("retry"), "", 200, `"status":"queued"`},
		{"POST", "/api/v1/runs/1/retry", "", 409, "of a command"}, {"POST", "/api/v1/runs/1/cancel", "", 409, "has ended"},
		{"POST", "/api/v1/runs/99/cancel", "", 404, "run 99"}, {"POST", "/api/v1/runs/0/cancel", "", 400, "path.run"}, {"POST", "/api/v1/runs/x/pause", "", 400, "path.run"},
		{"GET", at("cancel"), "", 405, ""}, {"DELETE", at("cancel"), "", 405, ""},
	} {
		for _, who := range []string{read, "", token} {
			r, body := w.ask(c.method, c.path, c.body, "Authorization", "Bearer "+who, "Content-Type", "application/json")
			if may := who == token || who == read && c.method == "GET"; !may && r.StatusCode != 401 {
				t.Errorf("%s %s by %q: %s", c.method, c.path, who, r.Status)
			} else if may && (r.StatusCode != c.code || !strings.Contains(body, c.says)) {
				t.Errorf("%s %s %s: %s %s, want %d with %s", c.method, c.path, c.body, r.Status, body, c.code, c.says)
			}
		}
	}
	q, err := w.store.Queue(t.Context(), store.Queued{}, 10)
	if err != nil || len(q) != 4 {
		t.Errorf("%+v, %v", q, err)
	}
}

// promoter has policies serve as it is told.
type promoter struct {
	store *store.Store
	err   error
}

func (p *promoter) Promote(ctx context.Context, version int64, reason string) error {
	if p.err != nil {
		return p.err
	}
	return p.store.Promote(ctx, func([]store.Promotion) (store.Promotion, bool, error) {
		return store.Promotion{Policy: version, Reason: reason}, true, nil
	})
}

func (p *promoter) Rollback(ctx context.Context, reason string) error {
	return p.Promote(ctx, 1, reason)
}

func TestPromotions(t *testing.T) {
	p := &promoter{}
	w := newWorld(t, func(o *Options) { p.store, o.Policies = o.Store, p })
	for _, c := range []struct {
		path, body string
		code       int
		says       string
	}{
		{"/api/v1/policies/1/promote", `{"reason": "it is better"}`, 200, `"reason":"it is better"`}, {"/api/v1/policies/rollback", `{}`, 200, `"reason":"a person said so"`},
		{"/api/v1/policies/9/promote", `{}`, 404, "v9"}, {"/api/v1/policies/x/promote", `{}`, 400, "version"}, {"/api/v1/policies/1/promote", `{"reason": 3}`, 400, "reason"},
	} {
		if r, body := w.ask("POST", c.path, c.body, "Content-Type", "application/json"); r.StatusCode != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s: %s %s", c.path, r.Status, body)
		}
	}
	p.err = errors.New("the driver said no")
	if r, body := w.ask("POST", "/api/v1/policies/1/promote", `{}`, "Content-Type", "application/json"); r.StatusCode != 503 || strings.Contains(body, "driver") {
		t.Errorf("%s %s", r.Status, body)
	}
}

// Episodes are served behind the same checks.
func TestEpisodesAreServedBehindTheChecks(t *testing.T) {
	const token, read = "0123456789abcdef", "fedcba9876543210"
	w := newWorld(t, func(o *Options) {
		o.Token, o.ReadToken = token, read
		o.Episodes = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) })
	})
	for _, c := range []struct {
		method, path, token string
		code                int
	}{
		{"POST", "/v1/episodes", token, 418}, {"POST", "/v1/episodes", read, 401}, {"POST", "/v1/episodes", "", 401}, {"GET", "/v1/stats", read, 418},
		{"POST", "/v1x", token, 404}, {"GET", "/api/v1/runs", token, 200},
	} {
		if r, body := w.ask(c.method, c.path, "", "Authorization", "Bearer "+c.token); r.StatusCode != c.code {
			t.Errorf("%s %s: %s %s", c.method, c.path, r.Status, body)
		}
	}
	if r, _ := w.ask("POST", "/v1/episodes", "", "Authorization", "Bearer "+token, "Origin", "http://evil.example"); r.StatusCode != 403 {
		t.Error(r.Status)
	}
}
