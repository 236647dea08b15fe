package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/internal/soak"
)

// listening is the HTTP API of a daemon that runs.
type listening struct {
	t   *testing.T
	url string
}

// served waits until a daemon says where its API is.
func (p *working) served() listening {
	p.t.Helper()
	p.reaches("serving the HTTP API")
	p.mu.Lock()
	defer p.mu.Unlock()
	found := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(strings.Join(p.log, "\n"))
	if found == "" {
		p.t.Fatal("it serves nothing")
	}
	return listening{p.t, found}
}

// ask returns the answer to a request.
func (l listening) ask(method, path, kind string, body io.Reader) (int, map[string]any) {
	l.t.Helper()
	q, err := http.NewRequestWithContext(l.t.Context(), method, l.url+path, body)
	if err != nil {
		l.t.Fatal(err)
	}
	q.Header.Set("Content-Type", kind)
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		l.t.Fatal(err)
	}
	defer r.Body.Close()
	var v map[string]any
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		l.t.Fatal(r.Status, err)
	}
	return r.StatusCode, v
}

// follow hears events after an id, until one of them is the last that is waited for. It
// returns the ids and what the events are.
func (l listening) follow(after string, last func(kind string, data map[string]any) bool) (ids, kinds []string) {
	l.t.Helper()
	q, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, l.url+"/api/v1/events", nil)
	if err != nil {
		l.t.Fatal(err)
	}
	q.Header.Set("Last-Event-ID", after)
	r, err := (&http.Client{Timeout: 5 * time.Minute}).Do(q)
	if err != nil {
		l.t.Fatal(err)
	}
	defer r.Body.Close()
	id, kind := "", ""
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			var data map[string]any
			if err := json.Unmarshal([]byte(value), &data); err != nil {
				l.t.Fatal(err)
			}
			if id != "" && kind != "ready" {
				for _, key := range []string{"status", "state"} {
					if word, there := data[key].(string); there {
						kind += " " + word
					}
				}
				ids, kinds = append(ids, id), append(kinds, kind)
				kind, _, _ = strings.Cut(kind, " ")
			}
			if last(kind, data) {
				return ids, kinds
			}
		case "":
			id, kind = "", ""
		}
	}
	l.t.Fatalf("the events end after %q", kinds)
	return nil, nil
}

// A file is sent to a daemon, its run is followed to the end and read. The daemon is
// killed; the next one goes on with what it told, and with what was sent.
func TestADaemonIsFollowed(t *testing.T) {
	if !soak.Turn(t, 4, 6) {
		t.Skip("it has its turn every sixth day, as TestKills has")
	}
	t.Parallel()
	python := os.Getenv("KERNELWRIGHT_TEST_PYTHON")
	if python == "" {
		t.Skip("KERNELWRIGHT_TEST_PYTHON names no Python that has PyTorch")
	}
	b := newBatch(t, python, 1)
	p := b.start("--listen", "127.0.0.1:0")
	api := p.served()
	var form bytes.Buffer
	m := multipart.NewWriter(&form)
	file, err := m.CreateFormFile("file", "declined.py")
	if err == nil {
		_, err = fmt.Fprintf(file, reference, "x @ x.t()")
	}
	if err == nil {
		err = m.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	code, sent := api.ask("POST", "/api/v1/tasks", m.FormDataContentType(), &form)
	if code != http.StatusCreated || sent["path"] != filepath.Join(b.dir, "declined.py") {
		t.Fatal(code, sent)
	}
	ended := func(kind string, data map[string]any) bool { return kind == "run" && data["status"] == "declined" }
	ids, kinds := api.follow("0", ended)
	if got := strings.Join(kinds, ", "); got != "run queued, queue waiting, queue claimed, run running, run declined" {
		t.Error(got)
	}
	if code, run := api.ask("GET", "/api/v1/runs/1", "", nil); code != http.StatusOK || run["run"].(map[string]any)["status"] != "declined" {
		t.Error(code, run)
	}
	if code, all := api.ask("GET", fmt.Sprint(sent["runs"]), "", nil); code != http.StatusOK || len(all["items"].([]any)) != 1 {
		t.Error(code, all)
	}
	// The queue is paused, so that what is sent now is there at the next start.
	if code, v := api.ask("POST", "/api/v1/queue/pause", "", nil); code != http.StatusOK {
		t.Error(code, v)
	}
	if code, v := api.ask("POST", "/api/v1/tasks", "application/json", strings.NewReader(`{"name": "bad.py", "source": "class Model: 1\n"}`)); code != http.StatusCreated || v["run"] == nil {
		t.Error(code, v)
	}
	p.kill()

	p = b.start("--listen", "127.0.0.1:0")
	api = p.served()
	if code, v := api.ask("POST", "/api/v1/queue/resume", "", nil); code != http.StatusOK {
		t.Error(code, v)
	}
	again, kinds := api.follow(ids[len(ids)-1], func(kind string, data map[string]any) bool { return kind == "run" && data["status"] == "invalid" })
	if got := strings.Join(kinds, ", "); got != "queue gone, queue, run queued, queue waiting, queue, queue claimed, run running, run invalid" {
		t.Errorf("after %s: %q %s", ids[len(ids)-1], again, got)
	}
	whole, _ := api.follow("0", func(kind string, data map[string]any) bool { return kind == "run" && data["status"] == "invalid" })
	if fmt.Sprint(whole) != fmt.Sprint(append(ids, again...)) {
		t.Errorf("in all %q, in parts %q and %q", whole, ids, again)
	}
	var held bytes.Buffer
	c := b.command("run", filepath.Join(b.dir, "bad.py"))
	c.Stderr = &held
	if err := c.Run(); err == nil || !strings.Contains(held.String(), "it serves "+api.url) {
		t.Errorf("%v: %s", err, held.String())
	}
	p.kill()
}
