package api

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/internal/soak"
)

// described is an operation of the document, as far as requests are made of it.
type described struct {
	method, path string
	Parameters   []struct {
		Name, In string
		Schema   struct {
			Type    any
			Enum    []string
			Minimum *float64
		}
	}
	RequestBody struct {
		Content map[string]struct{ Schema json.RawMessage }
	}
}

// operations are all of the document, in an order that does not change.
func operations(t testing.TB, d document) (all []described) {
	t.Helper()
	for path, methods := range d.Paths {
		for method, text := range methods {
			o := described{method: strings.ToUpper(method), path: path}
			if err := json.Unmarshal(text, &o); err != nil {
				t.Fatal(path, err)
			}
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b described) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	return all
}

// odd are values that parameters should not have, or hardly.
var odd = []string{
	"", "0", "1", "2", "-1", "3.5", "1e309", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "null", "true", "NaN", "..", "../../etc/passwd", "%2e%2e%2f", "a/b", `\..\`,
	"\x00", "\xff\xfe", "\u202e", "ünï", "'; DROP TABLE runs; --", "*", "\"*\" OR x", "{}", "[]", "${HOME}", "<script>", "\r\nX-Evil: 1", strings.Repeat("9", 400), strings.Repeat("é", 3000), "2026-11-30", "0000-00-00", "2026-11-30T25:00:00Z",
	"bnVsbA", "e30", "W10", "LTE", "OTk5OTk5OTk5OTk5OTk5OTk5OTk", "eyJydW4iOi0xfQ", "aten.softmax", "softmax", fingerprint,
}

// maker makes requests of a document.
type maker struct {
	*rand.Rand
	all []described
}

func (m maker) value(kind any, enum []string) string {
	switch n := m.IntN(4); {
	case n == 0 && len(enum) > 0:
		return enum[m.IntN(len(enum))]
	case n < 2 && fmt.Sprint(kind) == "integer":
		return fmt.Sprint(m.IntN(5))
	}
	return odd[m.IntN(len(odd))]
}

// body is one of a content type: of its schema's kind, of another one, or none at all.
func (m maker) body(kind string) string {
	some := m.value("", nil)
	text, err := json.Marshal(some)
	if err != nil {
		panic(err)
	}
	return []string{
		"", some, string(text), "{" + some, `{"priority": ` + fmt.Sprint(m.IntN(3000)-1500) + `}`, `{"priority": ` + string(text) + `}`, `{"reason": ` + string(text) + `}`,
		`{"name": ` + string(text) + `, "source": ` + string(text) + `}`, `{"name": "x.py", "source": ` + string(text) + `}`, strings.Repeat("[", 20_000), "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + some + "\"\r\n\r\nclass Model: pass\r\n--x--\r\n",
		"--x\r\n" + some,
	}[m.IntN(12)]
}

// request is one of a described operation, or nearly.
func (m maker) request() *http.Request {
	o := m.all[m.IntN(len(m.all))]
	path, query, header := o.path, url.Values{}, http.Header{}
	for _, p := range o.Parameters {
		v := m.value(p.Schema.Type, p.Schema.Enum)
		switch p.In {
		case "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", v)
		case "query":
			if m.IntN(3) == 0 {
				query.Add(p.Name, v)
			}
		case "header":
			if m.IntN(3) == 0 {
				header.Set(p.Name, v)
			}
		}
	}
	if m.IntN(20) == 0 {
		query.Add(m.value("", nil), m.value("", nil))
	}
	method := o.method
	if m.IntN(10) == 0 {
		method = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"}[m.IntN(7)]
	}
	kinds := []string{"application/json", "multipart/form-data; boundary=x", "text/plain", "", "application/json; charset=utf-16", "multipart/form-data"}
	kind := kinds[m.IntN(len(kinds))]
	body := m.body(kind)
	if o.method+" "+o.path == submitPattern && m.IntN(2) == 0 {
		kind, body = "application/json", fmt.Sprintf(`{"name": "x%d.py", "source": "class Model: pass\n"}`, m.IntN(1000))
	}
	r := httptest.NewRequest(method, "http://127.0.0.1/", strings.NewReader(body))
	r.URL.Path, r.URL.RawQuery, r.Header = path, query.Encode(), header
	if m.IntN(20) == 0 {
		r.URL.RawQuery = m.value("", nil)
	}
	r.Header.Set("Content-Type", kind)
	if m.IntN(5) == 0 {
		r.Header.Set("If-None-Match", m.value("", nil))
	}
	r.Header.Set("Authorization", "Bearer "+everything)
	return r
}

const everything = "all-that-may-be-done"

// Whatever is asked for, of any route of the document, the server is not at fault, and its
// answer is JSON with a sentence where it is none; no answer has a token or a line break of
// a header's in it. A request is made of the document, so a new route is asked for, too.
func TestNoRequestIsTheServersFault(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, func(o *Options) {
		o.Token, o.ReadToken, o.Folder, o.Patterns, o.Policies = everything, "only-what-can-be-read", dir, []string{"*.py"}, &promoter{store: o.Store}
	})
	r := httptest.NewRequest("GET", "http://127.0.0.1/openapi.json", nil)
	r.Header.Set("Authorization", "Bearer "+everything)
	answer := httptest.NewRecorder()
	w.api.ServeHTTP(answer, r)
	var d document
	w.check(json.Unmarshal(answer.Body.Bytes(), &d))
	n := 1000
	if soak.Long() {
		n = 100_000
	}
	m := maker{rand.New(rand.NewPCG(uint64(soak.Day(t)), 1)), operations(t, d)}
	asked := map[string]int{}
	for i := range n {
		q := m.request()
		if strings.HasPrefix(q.URL.Path, eventsPath) {
			ctx, cancel := context.WithCancel(q.Context())
			cancel() // it would not end
			q = q.WithContext(ctx)
		}
		got := httptest.NewRecorder()
		w.api.ServeHTTP(got, q)
		asked[fmt.Sprint(got.Code)]++
		if got.Code == 503 && q.URL.Path != "/readyz" && !strings.HasPrefix(q.URL.Path, eventsPath) {
			t.Errorf("request %d: %s %q?%q: %.300s", i, q.Method, q.URL.Path, q.URL.RawQuery, got.Body)
		}
		body := got.Body.String()
		if got.Code >= 500 && (got.Code != 503 || got.Header().Get("Retry-After") == "") || strings.Contains(body, everything) || strings.Contains(fmt.Sprint(got.Header()), "Evil") {
			t.Fatalf("request %d of day %d: %s %q?%q: %d %.500s", i, soak.Day(t), q.Method, q.URL.Path, q.URL.RawQuery, got.Code, body)
		}
		if problem := new(Problem); got.Code >= 400 && q.Method != "HEAD" && (json.Unmarshal([]byte(body), problem) != nil || problem.Text == "" || problem.Code != got.Code) {
			t.Fatalf("request %d: %s %q: %d %.500q", i, q.Method, q.URL.Path, got.Code, body)
		}
	}
	t.Log(asked)
	if asked["200"] < n/20 || asked["400"] < n/20 || asked["201"] == 0 {
		t.Errorf("the requests are all alike: %v", asked)
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".py") || e.IsDir() {
			t.Errorf("left behind: %q", e.Name())
		}
	}
	w.check(err)
}
