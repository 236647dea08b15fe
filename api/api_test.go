package api

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"go.uber.org/goleak"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	fingerprint = "abababababababababababababababababababababababababababababababab"
	exported    = "# it\n"
)

// world is an API over HTTP of a record in which there is something of everything.
type world struct {
	t     testing.TB
	api   *API
	store *store.Store
	http  *httptest.Server
}

func newWorld(t testing.TB, change func(*Options)) *world {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Store: s, Version: "1"}
	if change != nil {
		change(&o)
	}
	w := &world{t: t, store: s, api: New(o)}
	w.fill()
	w.http = httptest.NewServer(w.api)
	t.Cleanup(func() {
		w.api.Close()
		w.http.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// fill records two runs with three rounds each, one that waits, and one of all else.
func (w *world) fill() {
	ctx, s := w.t.Context(), w.store
	task := kernelwright.Task{Fingerprint: fingerprint, Name: "softmax", Source: "class Model: pass\n", Graph: []byte(`{"nodes": []}`), Operators: []string{"aten.softmax"}}
	device := kernelwright.Device{Kind: kernelwright.CPUDevice, Key: "key", Name: "a CPU"}
	w.check(s.SaveTask(ctx, task))
	w.check(s.SaveDevice(ctx, device))
	for range 2 {
		run, err := s.CreateRun(ctx, kernelwright.Run{
			Task: fingerprint, TaskName: "softmax", Path: "/x/softmax.py", Device: "cpu", DeviceKey: "key", Settings: `{"rounds": 3}`, Strategy: "rounds", Coder: "builtin", Judge: "rules", MaxRounds: 3, StartedMS: 1764417600000,
		})
		w.check(err)
		for i, status := range []kernelwright.Status{kernelwright.Wrong, kernelwright.Correct, kernelwright.Correct} {
			v := kernelwright.Verdict{Status: status, Level: kernelwright.Quick, Reason: "so it is", Metrics: map[string]float64{"time": float64(i + 1), "work": 1}}
			if status.OK() {
				v.CandidateMS, v.Headroom, v.Speedup = 2/float64(i), 0.5, &kernelwright.Speedup{Value: 2, Low: 1.5, High: 2.5, Against: "eager"}
			}
			w.check(s.AppendRound(ctx, kernelwright.Round{
				RunID: run.ID, Index: i, Candidate: kernelwright.Candidate{Source: fmt.Sprintf("class ModelNew: %d\n", i), Language: kernelwright.CPP}, Verdict: v, StartedMS: 1764417600000, FinishedMS: 1764417601000,
				Feedback: &kernelwright.Feedback{Kind: kernelwright.Optimisation, Bottleneck: "memory", Method: "m", Plan: "p", Rule: "memory_ceiling"},
			}))
		}
		_, err = s.Book(ctx, llm.Charge{Key: llm.Key{Run: run.ID, Agent: "coder"}, Model: "p:m", Usage: llm.Usage{In: 2, Out: 1}, EndedMS: 1764417600000})
		w.check(err)
		w.check(s.SetCertificate(ctx, run.ID, 2, kernelwright.Verdict{Status: kernelwright.Certified, Level: kernelwright.Certify, CandidateMS: 1, Exported: exported, ExportedSHA256: kernelwright.HashText(exported)}))
		run.Status, run.Stop, run.FinishedMS = kernelwright.RunDone, kernelwright.StopRounds, 1764417660000
		w.check(s.UpdateRun(ctx, run))
	}
	for i := range 3 {
		_, err := s.Enqueue(ctx, kernelwright.Run{TaskName: fmt.Sprint("waits ", i)}, i/2)
		w.check(err)
	}
	_, err := s.BeginNight(ctx, store.Night{DueMS: 1764417600000, UntilMS: 1764446400000, BegunMS: 1764417600000, Owner: "1@2@3"})
	w.check(err)
	pipeline, err := s.BeginPipeline(ctx, []byte(`{"small":true}`))
	w.check(err)
	_, err = s.BeginStage(ctx, pipeline.ID, "rft", []byte(`{}`), []byte(`{"epochs":1}`))
	w.check(err)
	_, err = s.SavePolicy(ctx, store.Policy{Digest: strings.Repeat("cd", 32), Files: []byte("[]")}, func(int64) error { return nil })
	w.check(err)
	_, err = s.CreateBench(ctx, kernelwright.Bench{References: []kernelwright.Reference{{Name: "softmax"}}, Seeds: []int64{0}})
	w.check(err)
	audit, err := s.CreateAudit(ctx, kernelwright.Audit{Path: "/x", Level: kernelwright.Quick})
	w.check(err)
	w.check(s.KeepAudited(ctx, audit.ID, 1, kernelwright.AuditPair{Reference: "a", Candidate: "b", Claim: &kernelwright.Claim{Speedup: 2, Against: "eager"}, Verdict: kernelwright.Verdict{Status: kernelwright.Wrong}}))
}

// reply is an answer without its body.
type reply struct {
	Status     string
	StatusCode int
	Header     http.Header
}

// ask sends a request and returns the answer with its body.
func (w *world) ask(method, path, body string, header ...string) (reply, string) {
	w.t.Helper()
	q, err := http.NewRequestWithContext(w.t.Context(), method, w.http.URL+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if q.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			q.Host = header[i+1]
		}
	}
	r, err := w.http.Client().Do(q)
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	w.check(err)
	return reply{r.Status, r.StatusCode, r.Header}, string(text)
}

// examples are paths that there is an answer to, by the path of their route.
var examples = map[string]string{
	"/api/v1/runs/{run}": "/api/v1/runs/1", "/api/v1/runs/{run}/rounds": "/api/v1/runs/1/rounds", "/api/v1/runs/{run}/rounds/{round}": "/api/v1/runs/1/rounds/2",
	"/api/v1/runs/{run}/metrics": "/api/v1/runs/1/metrics", "/api/v1/kernels/{sha256}": "/api/v1/kernels/" + kernelwright.HashText(exported),
	"/api/v1/tasks/{fingerprint}": "/api/v1/tasks/" + fingerprint, "/api/v1/texts/{sha256}": "/api/v1/texts/" + kernelwright.HashText("class ModelNew: 1\n"),
	"/api/v1/benches/{id}": "/api/v1/benches/1", "/api/v1/audits/{id}/pairs": "/api/v1/audits/1/pairs", "/api/v1/audits/{id}/pairs/{index}": "/api/v1/audits/1/pairs/0", "/api/v1/pipelines/{id}/stages": "/api/v1/pipelines/1/stages",
}

type document struct {
	OpenAPI    string                                `json:"openapi"`
	Paths      map[string]map[string]json.RawMessage `json:"paths"`
	Components struct {
		Schemas map[string]json.RawMessage `json:"schemas"`
	} `json:"components"`
}

func (w *world) document() (d document) {
	w.t.Helper()
	r, body := w.ask("GET", "/openapi.json", "")
	if err := json.Unmarshal([]byte(body), &d); err != nil || r.StatusCode != http.StatusOK || d.OpenAPI != "3.1.0" {
		w.t.Fatal(r.Status, err, d.OpenAPI)
	}
	return d
}

// resolved returns the JSON Schema (2020-12, as OpenAPI 3.1 has it) of a component.
func (d document) resolved(t testing.TB, name string) *jsonschema.Resolved {
	t.Helper()
	text, err := json.Marshal(map[string]any{"$ref": "#/$defs/" + name, "$defs": d.Components.Schemas})
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(text), "#/components/schemas/", "#/$defs/")), &s); err != nil {
		t.Fatal(name, err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(name, err)
	}
	return r
}

// The document has every route, and each answers in the form that the document gives.
func TestAnswersAreAsTheDocumentSays(t *testing.T) {
	w := newWorld(t, nil)
	w.api.Ready([]kernelwright.Device{{Kind: kernelwright.CPUDevice}})
	d := w.document()
	if len(d.Paths) < 25 {
		t.Errorf("%d paths", len(d.Paths))
	}
	for path, methods := range d.Paths {
		for method, text := range methods {
			var op struct {
				Responses map[string]struct {
					Content map[string]struct {
						Schema struct {
							Ref string `json:"$ref"`
						}
					}
				}
			}
			w.check(json.Unmarshal(text, &op))
			if method != "get" || path == eventsPath {
				continue
			}
			at := path
			if strings.Contains(path, "{") {
				at = examples[path]
			}
			r, body := w.ask("GET", at, "")
			if r.StatusCode != http.StatusOK {
				t.Errorf("%s: %s %s", path, r.Status, body)
				continue
			}
			ref := op.Responses["200"].Content["application/json"].Schema.Ref
			if path == "/metrics" {
				continue
			}
			name := strings.TrimPrefix(ref, "#/components/schemas/")
			if name == "" {
				t.Errorf("%s: no schema", path)
				continue
			}
			var got any
			w.check(json.Unmarshal([]byte(body), &got))
			if err := d.resolved(t, name).Validate(got); err != nil {
				t.Errorf("%s is no %s: %v\n%.600s", path, name, err, body)
			}
			if l, ok := got.(map[string]any)["items"].([]any); ok && len(l) == 0 && path != "/api/v1/lessons" && path != "/api/v1/promotions" {
				t.Errorf("%s is empty", path)
			}
		}
	}
}

// Every list comes whole through its pages, in the same order, each thing once.
func TestPages(t *testing.T) {
	w := newWorld(t, nil)
	type listed struct {
		Items []json.RawMessage
		Next  string
	}
	read := func(path string) (l listed) {
		r, body := w.ask("GET", path, "")
		if err := json.Unmarshal([]byte(body), &l); err != nil || r.StatusCode != 200 {
			t.Fatal(path, r.Status, body)
		}
		return l
	}
	for _, path := range []string{
		"/api/v1/runs", "/api/v1/runs?sort=oldest", "/api/v1/runs?name=softmax&device_key=key&status=done&since=2020-01-01", "/api/v1/runs/1/rounds", "/api/v1/runs/1/metrics", "/api/v1/runs/1/metrics?name=time",
		"/api/v1/verdicts", "/api/v1/verdicts?task=" + fingerprint + "&status=correct", "/api/v1/kernels", "/api/v1/kernels?name=softmax&language=cpp", "/api/v1/queue", "/api/v1/tasks", "/api/v1/devices", "/api/v1/costs", "/api/v1/costs/tasks", "/api/v1/lessons",
	} {
		mark := "?"
		if strings.Contains(path, "?") {
			mark = "&"
		}
		var all []string
		for _, item := range read(path).Items {
			all = append(all, string(item))
		}
		var got []string
		for next := path + mark + "limit=1"; ; {
			l := read(next)
			for _, item := range l.Items {
				got = append(got, string(item))
			}
			if l.Next == "" || len(got) > 50 {
				break
			}
			next = path + mark + "limit=1&cursor=" + l.Next
		}
		if len(all) == 0 && path != "/api/v1/lessons" || !slices.Equal(got, all) {
			t.Errorf("%s: %d in pages, %d at once", path, len(got), len(all))
		}
	}
}

// What cannot be is refused in a sentence, whatever it is.
func TestBadParameters(t *testing.T) {
	w := newWorld(t, nil)
	for _, c := range []struct {
		path string
		code int
		says string
	}{
		{"/api/v1/runs?limit=0", 400, "query.limit"}, {"/api/v1/runs?limit=201", 400, "query.limit"}, {"/api/v1/runs?limit=-1", 400, "query.limit"},
		{"/api/v1/runs?limit=99999999999999999999", 400, "query.limit"}, {"/api/v1/runs?limit=ten", 400, "query.limit"},
		{"/api/v1/runs?cursor=%00", 400, "no cursor"}, {"/api/v1/runs?cursor=eyJ9", 400, "no cursor"}, {"/api/v1/runs?cursor=" + cursor(-5), 400, "no cursor"},
		{"/api/v1/runs?cursor=" + cursor("text"), 400, "no cursor"}, {"/api/v1/queue?cursor=" + cursor(3), 400, "no cursor"}, {"/api/v1/runs?cursor=" + strings.Repeat("a", 1001), 400, "query.cursor"},
		{"/api/v1/runs?status=lost", 400, "query.status"}, {"/api/v1/runs?since=yesterday", 400, "no date"}, {"/api/v1/runs?until=2026-13-01", 400, "no date"},
		{"/api/v1/runs?sort=best", 400, "query.sort"}, {"/api/v1/runs?stauts=done", 400, "unknown query parameter"}, {"/api/v1/runs?name=" + strings.Repeat("n", 1001), 400, "query.name"},
		{"/api/v1/runs?name=%zz", 400, "cannot be read"}, {"/api/v1/runs?name=%ff%fe%00", 200, "items"}, {"/api/v1/runs?name=%27%3b--", 200, "items"},
		{"/api/v1/runs/0", 400, "path.run"}, {"/api/v1/runs/-1", 400, "path.run"}, {"/api/v1/runs/x", 400, "path.run"}, {"/api/v1/runs/99999999999999999999", 400, "path.run"},
		{"/api/v1/runs/77", 404, "run 77"}, {"/api/v1/runs/77/rounds", 404, "no run 77"}, {"/api/v1/runs/1/rounds/9", 404, "round 9"}, {"/api/v1/runs/1/rounds/-1", 400, "path.round"},
		{"/api/v1/texts/..%2f..%2fetc", 400, "path.sha256"}, {"/api/v1/texts/" + strings.Repeat("0", 64), 404, "not in the history"}, {"/api/v1/kernels/abc", 400, "path.sha256"},
		{"/api/v1/tasks/none", 404, "not in the history"}, {"/api/v1/benches/5", 404, "bench 5"}, {"/api/v1/audits/5/pairs", 404, "audit 5"}, {"/api/v1/audits/1/pairs/99", 404, "pair 99 of audit 1"}, {"/api/v1/audits/1/pairs/-1", 400, "path.index"}, {"/api/v1/pipelines/5/stages", 404, "pipeline 5"},
		{"/api/v1/verdicts?language=cobol", 400, "query.language"}, {"/api/v1/lessons?operators=softmax&cursor=" + cursor(place{1, 1}), 400, "one page"},
		{"/api/v1/nothing", 404, "there is no GET"}, {"/nothing", 404, "there is no GET"}, {"/readyz", 503, "no device"},
	} {
		r, body := w.ask("GET", c.path, "")
		if r.StatusCode != c.code || !strings.Contains(body, c.says) || c.code >= 400 && !strings.Contains(body, `"hint"`) {
			t.Errorf("%.80s: %d %.300s, want %d with %q", c.path, r.StatusCode, body, c.code, c.says)
		}
		if c.code == 503 && r.Header.Get("Retry-After") == "" {
			t.Errorf("%s does not say when to ask again", c.path)
		}
	}
	for _, method := range []string{"POST", "DELETE", "PUT", "PATCH"} {
		if r, body := w.ask(method, "/api/v1/runs", "{}"); r.StatusCode != 405 || r.Header.Get("Allow") == "" {
			t.Errorf("%s: %s %s", method, r.Status, body)
		}
	}
}

// Without a token who names this machine is answered, with one who knows it, and no page
// from elsewhere.
func TestWhoIsAnswered(t *testing.T) {
	const token, read = "0123456789abcdef", "fedcba9876543210"
	open := newWorld(t, nil)
	closed := newWorld(t, func(o *Options) { o.Token, o.ReadToken = token, read })
	for _, c := range []struct {
		w      *world
		header []string
		code   int
	}{
		{open, nil, 200}, {open, []string{"Host", "localhost"}, 200}, {open, []string{"Host", "evil.example"}, 403}, {open, []string{"Host", "127.0.0.1.evil.example"}, 403},
		{open, []string{"Origin", "http://evil.example"}, 403}, {open, []string{"Origin", "null"}, 403}, {open, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{closed, nil, 401}, {closed, []string{"Authorization", "Bearer " + token}, 200}, {closed, []string{"Authorization", "Bearer " + read}, 200},
		{closed, []string{"Authorization", token}, 401}, {closed, []string{"Authorization", "Bearer 0123456789abcdeF"}, 401},
		{closed, []string{"Authorization", "Bearer " + token, "Origin", "http://evil.example"}, 403}, {closed, []string{"Authorization", "Bearer " + token, "Host", "gpu.example"}, 200},
	} {
		r, body := c.w.ask("GET", "/healthz", "", c.header...)
		if r.StatusCode != c.code || strings.Contains(body, token) {
			t.Errorf("%v: %s %s, want %d", c.header, r.Status, body, c.code)
		}
	}
	if r, _ := closed.ask("POST", "/healthz", "", "Authorization", "Bearer "+read); r.StatusCode != 401 {
		t.Errorf("a token for reading may write: %s", r.Status)
	}
}

// An answer that a client has is not sent again; one that changed is.
func TestTags(t *testing.T) {
	w := newWorld(t, nil)
	r, _ := w.ask("GET", "/api/v1/runs", "")
	tag := r.Header.Get("ETag")
	if r, body := w.ask("GET", "/api/v1/runs", "", "If-None-Match", `"other", W/`+tag); tag == "" || r.StatusCode != 304 || body != "" {
		t.Errorf("%q: %s %s", tag, r.Status, body)
	}
	if _, err := w.store.CreateRun(t.Context(), kernelwright.Run{TaskName: "new"}); err != nil {
		t.Fatal(err)
	}
	if r, _ := w.ask("GET", "/api/v1/runs", "", "If-None-Match", tag); r.StatusCode != 200 || r.Header.Get("ETag") == tag {
		t.Error(r.Status)
	}
}

// Metrics have the form and the names that Prometheus asks for: each has a help and a
// type before it, counters and nothing else end in _total, and units are base units.
func TestMetricsHaveTheFieldsNames(t *testing.T) {
	w := newWorld(t, nil)
	r, body := w.ask("GET", "/metrics", "")
	if r.StatusCode != 200 || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Error(r.Status, r.Header)
	}
	kinds, helps, samples := map[string]string{}, map[string]bool{}, 0
	sample := regexp.MustCompile(`^([a-z][a-z0-9_]*)(\{[a-z_]+="[^"]*"\})? (-?[0-9.e+]+)$`)
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		words := strings.SplitN(line, " ", 4)
		switch {
		case strings.HasPrefix(line, "# HELP "):
			if helps[words[2]] || len(words) < 4 || !strings.HasSuffix(line, ".") {
				t.Errorf("%q", line)
			}
			helps[words[2]] = true
		case strings.HasPrefix(line, "# TYPE "):
			if !helps[words[2]] || kinds[words[2]] != "" {
				t.Errorf("%q comes before its help, or twice", line)
			}
			kinds[words[2]] = words[3]
		default:
			found := sample.FindStringSubmatch(line)
			if found == nil || kinds[found[1]] == "" {
				t.Fatalf("%q", line)
			}
			samples++
			name := found[1]
			if (kinds[name] == "counter") != strings.HasSuffix(name, "_total") || regexp.MustCompile(`_(ms|milliseconds|kb|mb|percent|count|gauge)(_|$)`).MatchString(name) {
				t.Errorf("a %s is called %s", kinds[name], name)
			}
		}
	}
	if samples < 15 || kinds["process_cpu_seconds_total"] != "counter" {
		t.Errorf("%d samples: %v", samples, kinds)
	}
}

// A tag cannot be computed: the languages of a parameter are those that there are.
func TestLanguagesOfParameters(t *testing.T) {
	f, _ := reflect.TypeFor[figureParameters]().FieldByName("Language")
	named := strings.Split(f.Tag.Get("enum"), ",")
	for _, language := range kernelwright.AllLanguages() {
		if !slices.Contains(named, string(language)) {
			t.Errorf("%s is not among %v", language, named)
		}
	}
	if len(named) != len(kernelwright.AllLanguages()) {
		t.Errorf("%v are not %v", named, kernelwright.AllLanguages())
	}
}

// No parameters, whatever they are, are the server's fault.
func FuzzParameters(f *testing.F) {
	w := newWorld(f, nil)
	paths := []string{"/api/v1/runs", "/api/v1/verdicts", "/api/v1/kernels", "/api/v1/queue", "/api/v1/lessons", "/api/v1/tasks", "/api/v1/runs/1/metrics", "/api/v1/runs/1/rounds", "/api/v1/costs", "/api/v1/costs/tasks"}
	f.Add(byte(0), "cursor="+cursor(3))
	f.Add(byte(1), "cursor="+cursor(place{1, 2})+"&status=wrong")
	f.Add(byte(3), "cursor="+cursor(store.Queued{State: "waiting", Job: 1}))
	f.Add(byte(4), "operators=softmax,%00&limit=200")
	f.Add(byte(6), "name=%ff;&cursor=bnVsbA")
	f.Fuzz(func(t *testing.T, which byte, query string) {
		r := httptest.NewRequest("GET", "http://127.0.0.1/", nil)
		r.URL.Path, r.URL.RawQuery = paths[int(which)%len(paths)], query
		got := httptest.NewRecorder()
		w.api.ServeHTTP(got, r)
		if got.Code >= 500 {
			t.Errorf("%s?%s: %d %s", r.URL.Path, query, got.Code, got.Body)
		}
	})
}
