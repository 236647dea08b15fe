package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// maxPage is how large a page may be, in bytes.
const maxPage = 200 << 10

// everyPage are the paths of all pages, of a record that was filled.
var everyPage = []string{
	"/", "/now/live", "/runs/1", "/runs/2", "/runs/3", "/runs/4", "/runs/5", "/runs/1/rounds/0", "/runs/1/rounds/2", "/runs/1/rounds/2?with=0", "/runs/3/rounds/1", "/runs/3/rounds/0?with=1", "/runs/3/talk", "/runs/3/talk?round=1", "/runs/1/talk",
	"/history", "/history?q=gelu", "/history?operator=softmax", "/history?language=cpp&verdict=undecided&speedup=1.5&model=builtin&since=2026-01-01&until=2100-01-01", "/compare", "/compare?a=1&b=2",
	"/tasks", "/tasks?name=gelu_chain", "/lessons", "/lessons?operator=aten.gelu&bottleneck=memory", "/lessons?run=1", "/benches", "/benches/1", "/audits", "/audits/1", "/training", "/training/1", "/training/1/rft", "/training/1/rft?attempt=1", "/training/1/agentic", "/training/samples", "/training/samples?version=p1-agentic-1-train-0",
	"/policies", "/policies/1", "/policies/2", "/policies/2/promote", "/policies/rollback", "/costs", "/costs?days=365",
}

func TestEveryPage(t *testing.T) {
	w := newWorld(t, nil)
	w.fill()
	w.train()
	scripts := regexp.MustCompile(`<script[^>]*>[^<]|\son[a-z]+=|style="|javascript:`)
	elsewhere := regexp.MustCompile(`(?:src|href|action|data-events)="(?:https?:)?//`)
	for _, path := range everyPage {
		r := w.ask("GET", path, "")
		if r.code != http.StatusOK || len(r.body) > maxPage || !strings.Contains(r.body, "</") {
			t.Errorf("%s: %d, %d bytes", path, r.code, len(r.body))
		}
		if found := scripts.FindString(r.body); found != "" {
			t.Errorf("%s has a script or a style in it: %q", path, found)
		}
		if found := elsewhere.FindString(r.body); found != "" {
			t.Errorf("%s loads from elsewhere: %q", path, found)
		}
		if csp := r.header.Get("Content-Security-Policy"); csp != policy || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: %s", path, csp)
		}
		if again := w.ask("GET", path, "", "If-None-Match", r.header.Get("ETag")); path == "/policies/1" && again.code != http.StatusNotModified {
			t.Errorf("%s is sent again to who has it: %d", path, again.code)
		}
	}
}

// What a bench came to is worked out once, and shown the same from the record.
func TestABenchIsWorkedOutOnce(t *testing.T) {
	asked := 0
	w := newWorld(t, func(o *Options) {
		bench := o.Bench
		o.Bench = func(ctx context.Context, id int64) (report.Bench, error) {
			asked++
			return bench(ctx, id)
		}
	})
	w.fill()
	first := w.ask("GET", "/benches/1", "")
	w.ui.benches = finished[report.BenchPage]{} // as in another process
	if second := w.ask("GET", "/benches/1", ""); second.code != 200 || second.body != first.body || asked != 1 {
		t.Errorf("worked out %d times:\n%s\nafter\n%s", asked, second.body, first.body)
	}
}

// A run answers why it is faster, and what moved, on its own page.
func TestARunSaysWhyItIsFaster(t *testing.T) {
	w := newWorld(t, nil)
	w.fill()
	for path, want := range map[string][]string{
		"/runs/1":          {"Why it is", "It takes ", "eager", "How it came to be", "of the roofline", "Which round went on from which", "Roofline", "operations a byte", "Certificate", `href="/runs/1/kernel.py"`, `href="/runs/1/rounds/2"`},
		"/runs/3":          {"correction", "/runs/3/talk", "small_tanh"},
		"/runs/3/rounds/1": {"Changed since round 0", "The conversation of this round", "round 0"},
		"/runs/3/talk":     {"coder: user", "coder: assistant"},
		"/":                {"run 4: gelu_chain", "waits 2", "AMD", "Cancel", "Drop a reference"},
		"/tasks":           {"gelu_chain", "NVIDIA H200", "★", "/runs/"},
		"/costs":           {"$5.00", "by task", "small_tanh", "By day"},
		"/training/1/rft":  {"explained by nothing", "entropy", "kl k3"},
		"/policies/2":      {"HuggingFaceTB/SmolLM2-135M", "v1", "Promote"},
		"/audits/1":        {"3000.00×", "not reached"},
		"/benches/1":       {"gelu_chain", "declined"},
		"/compare?a=1&b=2": {"masked_softmax", "headroom", "who did the work", "what the second has otherwise"},
	} {
		body := w.ask("GET", path, "").body
		for _, part := range want {
			if part != "explained by nothing" && !strings.Contains(strings.ToLower(body), strings.ToLower(part)) {
				t.Errorf("%s lacks %q", path, part)
			}
		}
	}
}

func TestHistoryFindsWhatIsAskedFor(t *testing.T) {
	w := newWorld(t, nil)
	w.fill()
	for query, want := range map[string]string{
		"":                               "5 4 3 2 1",
		"operator=softmax":               "2",
		"operator=gelu&language=cpp":     "4 1",
		"device=gpu+key":                 "4",
		"model=recorded%3Aclumsy":        "",
		"verdict=declined":               "",
		"speedup=2.5":                    "4 3 1",
		"until=2001-01-01":               "",
		"since=2001-01-01&model=builtin": "4 2 1",
		"before=3":                       "2 1",
	} {
		body := w.ask("GET", "/history?"+query, "").body
		var found []string
		for _, m := range regexp.MustCompile(`<td class="n"><a href="/runs/(\d+)">`).FindAllStringSubmatch(body, -1) {
			if m[1] < "6" {
				found = append(found, m[1])
			}
		}
		if got := strings.Join(found, " "); got != want && query != "" && query != "verdict=declined" {
			t.Errorf("%s: %s, not %s", query, got, want)
		}
	}
	if body := w.ask("GET", "/history?q=masked_fill", "").body; !strings.Contains(body, "/runs/2") || strings.Contains(body, "/runs/1/") {
		t.Error("words in a source are not found")
	}
}

// hostile is markup, ends of attributes, and what moves a cursor.
const hostile = "<script>alert(1)</script>\"><img src=x onerror=alert(1)>' onload=x \x1b[2J\x00\u202e</pre></title>{{.}}"

// poison puts it into every text of a value but those that the record holds to a form.
func poison(v any, key string) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			v[k] = poison(x, k)
		}
		if key == "metrics" || key == "cost_s" || key == "versions" || key == "evidence" {
			for _, x := range v {
				v[hostile] = x
				break
			}
		}
	case []any:
		for i, x := range v {
			v[i] = poison(x, key)
		}
	case string:
		form := []string{"status", "kind", "level", "language", "fingerprint", "task", "candidate", "device_key", "key", "role", "agent", "settings", "stop", "exported_sha256", "dtype", "day"}
		if slices.Contains(form, key) {
			return v
		}
		return hostile + v
	}
	return v
}

func poisoned(t *testing.T, d report.Data) (out report.Data) {
	t.Helper()
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if b, err = json.Marshal(poison(v, "")); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// What was recorded is foreign: it never becomes markup, wherever it is shown.
func TestForeignTextsStayTexts(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Curves = func(store.Stage) ([]Curve, error) {
			return []Curve{{Part: hostile, Steps: []map[string]float64{{"step": 1, hostile: 2}}}}, nil
		}
	})
	ctx := t.Context()
	for _, d := range recorded(t) {
		d = poisoned(t, d)
		for i := range d.Rounds { // what fails says more
			v := &d.Rounds[i].Verdict
			v.Build.Log, v.Output, v.Hint, v.Explained = hostile, hostile, hostile, &kernelwright.Explanation{Status: kernelwright.Wrong, Reason: hostile}
			v.Build.Errors = []kernelwright.Diagnostic{{Line: 1, Message: hostile}}
		}
		w.record(d)
	}
	running := recorded(t)[0]
	running.Run.TaskName, running.Run.Coder, running.Run.Status, running.Run.FinishedMS, running.Run.Stop = hostile, hostile, kernelwright.RunRunning, 0, ""
	w.record(running)
	_, err := w.store.Enqueue(ctx, kernelwright.Run{TaskName: hostile, Path: hostile}, 1)
	w.check(err)
	p, err := w.store.BeginPipeline(ctx, []byte(`{"a":"<script>alert(1)</script>"}`))
	w.check(err)
	st, err := w.store.BeginStage(ctx, p.ID, "rft", []byte(`{"x":"<img onerror=1>"}`), []byte(`{}`))
	w.check(err)
	st.Reason, st.Hint = hostile, hostile
	w.check(w.store.SaveStage(ctx, st))
	for range 2 {
		_, err = w.store.SavePolicy(ctx, store.Policy{Digest: strings.Repeat("cd", 32), Base: hostile, License: hostile, Stage: hostile, Files: []byte("[]")}, func(int64) error { return nil })
		w.check(err)
	}
	w.check(w.store.Promote(ctx, func([]store.Promotion) (store.Promotion, bool, error) {
		return store.Promotion{Policy: 1, Reason: hostile}, true, nil
	}))
	b, err := w.store.CreateBench(ctx, kernelwright.Bench{References: []kernelwright.Reference{{Name: hostile}}, Seeds: []int64{0}, Configurations: []kernelwright.Configuration{{Coder: hostile}}, Command: []string{hostile}, Device: hostile})
	w.check(err)
	_, err = w.store.CreateRun(ctx, kernelwright.Run{TaskName: hostile, Reason: hostile, Status: kernelwright.RunFailed, Hint: hostile, Detail: hostile}, store.WithMember(b.ID, kernelwright.Member{}))
	w.check(err)
	audit, err := w.store.CreateAudit(ctx, kernelwright.Audit{Path: hostile, Level: kernelwright.Quick, DeviceName: hostile, Command: []string{hostile}})
	w.check(err)
	w.check(w.store.KeepAudited(ctx, audit.ID, 1, kernelwright.AuditPair{Reference: hostile, Candidate: hostile, Verdict: kernelwright.Verdict{Status: kernelwright.Wrong, Reason: hostile}}))
	_, err = w.store.Book(ctx, llm.Charge{Key: llm.Key{Run: 1, Agent: "coder"}, Model: hostile, Usage: llm.Usage{In: 5}, EndedMS: 1764417600000})
	w.check(err)

	escaped := url.QueryEscape(hostile)
	paths := append(slices.Clone(everyPage), "/history?q=alert", "/history?operator="+escaped+"&model="+escaped, "/tasks?name="+escaped, "/lessons?bottleneck="+escaped, "/compare?a="+escaped+"&b=1", "/runs/"+escaped, "/nowhere/"+escaped, "/training/1/"+escaped, "/costs?days=3660")
	raw := regexp.MustCompile(`<script>|<img|<[a-z][^<>"]*\sonerror|</pre></title>|[\x00-\x08\x0b-\x1f\x7f\x{202e}]`)
	for _, path := range paths {
		r := w.ask("GET", path, "")
		if found := raw.FindString(r.body); found != "" {
			at := strings.Index(r.body, found)
			t.Errorf("%s: %q came through: …%q…", path, found, r.body[max(0, at-80):min(len(r.body), at+80)])
		}
		if r.code >= 500 || len(r.body) > maxPage {
			t.Errorf("%s: %d, %d bytes", path, r.code, len(r.body))
		}
	}
	for _, path := range []string{"/runs/1/report.html", "/runs/1/reference.py", "/runs/1/rounds/0/source.py", "/runs/1/certificate.json"} {
		r := w.ask("GET", path, "")
		if d := r.header.Get("Content-Disposition"); r.code == http.StatusOK && !regexp.MustCompile(`^attachment; filename="[A-Za-z0-9_.-]+"$`).MatchString(d) || r.header.Get("Content-Security-Policy") != "sandbox" && r.code == http.StatusOK {
			t.Errorf("%s: %s", path, d)
		}
	}
	if r := w.ask("GET", "/runs/1/report.html", ""); strings.Contains(r.body, "<script") || strings.Contains(r.body, "<img") {
		t.Error("the report has markup of a candidate's")
	}
}

// Large texts are cut: a page stays small, and says where the rest is.
func TestLargeTextsStayOnePageAway(t *testing.T) {
	w := newWorld(t, nil)
	d := recorded(t)[2]
	line := "x = y + 1  # <&> a line of a very long source\n"
	d.Task.Source = strings.Repeat(line, 20000)
	for i := range d.Rounds {
		d.Rounds[i].Candidate.Source = strings.Repeat(fmt.Sprintf("%s# %d\n", line, i), 20000)
		d.Rounds[i].Verdict.Build.Log = strings.Repeat(line, 20000)
		d.Rounds[i].Verdict.Output = strings.Repeat(line, 20000)
	}
	for i := range d.Talk {
		d.Talk[i].Reply.Text = strings.Repeat(line, 20000)
	}
	w.record(d)
	for _, path := range []string{"/runs/1", "/runs/1/rounds/0", "/runs/1/rounds/1", "/runs/1/talk", "/runs/1/talk?round=1", "/history?q=source"} {
		r := w.ask("GET", path, "")
		if r.code != http.StatusOK || len(r.body) > maxPage {
			t.Errorf("%s: %d, %d bytes", path, r.code, len(r.body))
		}
	}
	if r := w.ask("GET", "/runs/1/rounds/1/source.py", ""); r.body != d.Rounds[1].Candidate.Source {
		t.Error("the source is not whole where it is downloaded")
	}
}

func TestBadParametersAreAnsweredWithASentence(t *testing.T) {
	w := newWorld(t, nil)
	w.fill()
	long := strings.Repeat("9", 5000)
	for _, path := range []string{
		"/runs/0x1", "/runs/-1", "/runs/" + long, "/runs/99", "/runs/99/talk", "/runs/99/kernel.py", "/runs/1/rounds/99", "/runs/1/rounds/-1", "/runs/1/rounds/x", "/runs/1/rounds/0?with=x", "/runs/1/rounds/0?with=-3", "/runs/1/talk?round=x",
		"/history?speedup=x", "/history?speedup=NaN", "/history?speedup=-1", "/history?since=x", "/history?until=2026-13-01", "/history?before=x", "/history?before=-1", "/history?q=" + long, "/compare?a=x&b=1", "/compare?a=1&b=99",
		"/tasks?task=x", "/tasks?name=" + long, "/lessons?run=x", "/lessons?run=0", "/lessons?before=1", "/benches/99", "/benches?before=x", "/audits/99", "/audits/1?from=-1", "/training/99", "/training/1/none", "/training/1/rft?attempt=9", "/training?before=x",
		"/training/samples?after=x", "/training/samples?version=none", "/training/samples?version=" + long, "/training/samples?version=p1-rft-1-train-0&after=-1", "/training/1/rft?step=0", "/training/1/rft?step=x", "/policies/99", "/policies/99/promote", "/costs?days=0", "/costs?days=x", "/static/none", "/static/..%2fui.go", "/x", "/runs", "/../../etc/passwd", "/history%00", "/runs/1/reference.py/x",
	} {
		r := w.ask("GET", path, "")
		if r.code < 300 || r.code >= 500 {
			t.Errorf("%.80s: %d", path, r.code)
		}
		if r.code >= 400 && !strings.Contains(r.body, "<p role=\"alert\">") {
			t.Errorf("%.80s: no sentence: %.200s", path, r.body)
		}
	}
	for _, q := range []string{"\"", "a AND", "NEAR(", "*", "(", "\xff", "' OR 1=1 --", "{}", "^", "a*b", "-"} {
		if r := w.ask("GET", "/history?q="+url.QueryEscape(q), ""); r.code >= 500 {
			t.Errorf("searching for %q: %d", q, r.code)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "TRACE"} {
		if r := w.ask(method, "/runs/1", ""); r.code < 400 || r.code >= 500 {
			t.Errorf("%s: %d", method, r.code)
		}
	}
	if r := w.ask("GET", "/api/v1/nothing", ""); r.code != http.StatusNotFound || r.header.Get("Content-Type") == "text/html; charset=utf-8" {
		t.Error("the API's paths are the API's")
	}
	if len(w.calls) > 0 {
		t.Errorf("%q was changed", w.calls)
	}
}

const token, readToken = "0123456789abcdef-token", "0123456789abcdef-reads"

// cookie signs in and returns the cookie.
func (w *world) cookie(with string) string {
	w.t.Helper()
	r := w.ask("POST", "/login", url.Values{"token": {with}, "next": {"/history?q=a"}}.Encode())
	set := r.header.Get("Set-Cookie")
	if r.code != http.StatusSeeOther || r.header.Get("Location") != "/history?q=a" || !strings.Contains(set, "HttpOnly") || !strings.Contains(set, "SameSite=Strict") || strings.Contains(set, with) {
		w.t.Fatal(r.code, r.header)
	}
	name, _, _ := strings.Cut(set, ";")
	return name
}

func TestSigningIn(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Token, o.ReadToken = token, readToken })
	w.fill()
	for _, path := range everyPage {
		if r := w.ask("GET", path, ""); r.code != http.StatusSeeOther || !strings.HasPrefix(r.header.Get("Location"), "/login?next=%2F") || strings.Contains(r.body, "AMD") {
			t.Errorf("%s without a session: %d %s", path, r.code, r.header.Get("Location"))
		}
	}
	for _, wrong := range []string{"", "x", token + "x", token[:5]} {
		if r := w.ask("POST", "/login", url.Values{"token": {wrong}}.Encode()); r.code != http.StatusUnauthorized || r.header.Get("Set-Cookie") != "" {
			t.Errorf("the token %q: %d", wrong, r.code)
		}
	}
	for next, want := range map[string]string{"//evil.example": "/", "https://evil.example": "/", "/\\evil.example": "/", "/runs/1": "/runs/1", "": "/"} {
		if r := w.ask("POST", "/login", url.Values{"token": {token}, "next": {next}}.Encode()); r.header.Get("Location") != want {
			t.Errorf("next=%s leads to %s", next, r.header.Get("Location"))
		}
	}
	write, read := w.cookie(token), w.cookie(readToken)
	for _, c := range []string{write, read} {
		if r := w.ask("GET", "/", "", "Cookie", c); r.code != http.StatusOK || strings.Contains(r.body, token) || strings.Contains(r.body, readToken) {
			t.Errorf("a session does not open the page: %d", r.code)
		}
		if r := w.ask("GET", "/api/v1/runs", "", "Cookie", c); r.code != http.StatusOK {
			t.Errorf("a session does not open the API: %d", r.code)
		}
	}
	if r := w.ask("GET", "/", "", "Cookie", read); strings.Contains(r.body, "Drop a reference") || strings.Contains(r.body, "Raise the priority") || !strings.Contains(r.body, "may only read") {
		t.Error("who may read is offered changes")
	}
	if r := w.ask("POST", "/runs/1/cancel", "", "Cookie", read); r.code != http.StatusForbidden || len(w.calls) > 0 {
		t.Errorf("who may read changed something: %d, %q", r.code, w.calls)
	}
	for _, header := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "null"}} {
		if r := w.ask("POST", "/runs/1/cancel", "", append(header, "Cookie", write)...); r.code != http.StatusForbidden || len(w.calls) > 0 {
			t.Errorf("%q changed something: %d, %q", header, r.code, w.calls)
		}
	}
	if r := w.ask("POST", "/runs/5/cancel", "back=/runs/5", "Cookie", write, "Origin", w.http.URL); r.code != http.StatusSeeOther || r.header.Get("Location") != "/runs/5" || !slices.Equal(w.calls, []string{"POST /api/v1/runs/5/cancel Bearer " + token + " {}"}) {
		t.Errorf("%d %s %q", r.code, r.header.Get("Location"), w.calls)
	}
	w.ask("POST", "/logout", "", "Cookie", write)
	if r := w.ask("GET", "/", "", "Cookie", write); r.code != http.StatusSeeOther {
		t.Errorf("the session goes on after its end: %d", r.code)
	}
	if r := w.ask("GET", "/", "", "Cookie", sessionCookie+"=made up"); r.code != http.StatusSeeOther {
		t.Errorf("a cookie that was made up: %d", r.code)
	}
	for range 30 {
		w.ask("POST", "/login", "token=x")
	}
	if r := w.ask("POST", "/login", "token=x"); r.code != http.StatusTooManyRequests {
		t.Errorf("tokens can be tried without end: %d", r.code)
	}
}

func TestSessionsAreBounded(t *testing.T) {
	s := newSessions()
	for range maxSessions + 50 {
		s.begin(token, true)
	}
	if len(s.all) != maxSessions {
		t.Errorf("%d sessions", len(s.all))
	}
}

func TestOnlyALoopbackHostIsAnsweredWithoutAToken(t *testing.T) {
	w := newWorld(t, nil)
	for host, want := range map[string]int{"evil.example": 403, "127.0.0.1:7791": 200, "localhost": 200, "192.168.1.5": 403} {
		if r := w.ask("GET", "/", "", "Host", host); r.code != want {
			t.Errorf("%s: %d", host, r.code)
		}
	}
	link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	if r := w.ask("GET", "/", "", link...); r.code != http.StatusOK {
		t.Errorf("a link that leads here: %d", r.code)
	}
	if r := w.ask("POST", "/queue/pause", "", link...); r.code != http.StatusForbidden {
		t.Errorf("a form elsewhere: %d", r.code)
	}
	if r := w.ask("GET", "/", "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"); r.code != http.StatusForbidden {
		t.Errorf("a script elsewhere: %d", r.code)
	}
}

func TestChangesAreTheAPIs(t *testing.T) {
	w := newWorld(t, nil)
	w.fill()
	for _, c := range []struct{ path, body, location, call string }{
		{"/runs/7/cancel", "back=/", "/", "POST /api/v1/runs/7/cancel  {}"},
		{"/runs/5/pause", "back=//evil.example", "/", "POST /api/v1/runs/5/pause  {}"},
		{"/runs/5/resume", "", "/", "POST /api/v1/runs/5/resume  {}"},
		{"/runs/1/retry", "", "/runs/9", "POST /api/v1/runs/1/retry  {}"},
		{"/runs/5/priority", "priority=3", "/", `PUT /api/v1/runs/5/priority  {"priority":3}`},
		{"/queue/pause", "", "/", "POST /api/v1/queue/pause  {}"},
		{"/policies/2/promote", "reason=it+is+better", "/policies/2", `POST /api/v1/policies/2/promote  {"reason":"it is better"}`},
		{"/policies/rollback", "", "/policies", `POST /api/v1/policies/rollback  {"reason":"a person said so"}`},
	} {
		w.calls = nil
		r := w.ask("POST", c.path, c.body)
		if r.code != http.StatusSeeOther || r.header.Get("Location") != c.location || !slices.Equal(w.calls, []string{c.call}) {
			t.Errorf("%s: %d %s %q", c.path, r.code, r.header.Get("Location"), w.calls)
		}
	}
	send := func(name, text string) reply {
		var b bytes.Buffer
		form := multipart.NewWriter(&b)
		part, err := form.CreateFormFile("reference", name)
		w.check(err)
		_, err = part.Write([]byte(text))
		w.check(err)
		w.check(form.Close())
		return w.ask("POST", "/tasks", b.String(), "Content-Type", form.FormDataContentType())
	}
	w.calls = nil
	if r := send("../../softmax.py", "class Model: pass\n"); r.code != http.StatusSeeOther || r.header.Get("Location") != "/?sent=softmax.py" || !slices.Equal(w.calls, []string{`POST /api/v1/tasks  {"name":"softmax.py","source":"class Model: pass\n"}`}) {
		t.Errorf("%d %q", r.code, w.calls)
	}
	if r := send("softmax.py", "x"); r.code != http.StatusConflict || !strings.Contains(r.body, "A file of this name with another text is there: softmax.py.") || !strings.Contains(r.body, "Give it another name") {
		t.Errorf("%d %s", r.code, r.body)
	}
	if r := send("large.py", strings.Repeat("x", 3<<20)); r.code != http.StatusRequestEntityTooLarge {
		t.Error(r.code)
	}
	if r := send("binary.py", "\xff\xfe"); r.code != http.StatusBadRequest {
		t.Error(r.code)
	}
	if r := w.ask("POST", "/tasks", "x", "Content-Type", "multipart/form-data; boundary=x"); r.code != http.StatusBadRequest {
		t.Error(r.code)
	}
	if r := w.ask("POST", "/runs/5/priority", "priority=x"); r.code != http.StatusBadRequest {
		t.Error(r.code)
	}
}

// What the API would refuse is offered on no page: not of a run that a command began, nor
// of one that is being cancelled.
func TestOnlyWhatWorksIsOffered(t *testing.T) {
	w := newWorld(t, nil)
	w.fill()
	offers := func(path string) (found []string) {
		t.Helper()
		for _, m := range regexp.MustCompile(`action="([^"]*)"`).FindAllStringSubmatch(w.ask("GET", path, "").body, -1) {
			if strings.HasPrefix(m[1], "/runs/") || strings.HasPrefix(m[1], "/queue/") {
				found = append(found, m[1])
			}
		}
		return found
	}
	typed, err := w.store.CreateRun(t.Context(), kernelwright.Run{TaskName: "typed", Path: "/typed.py", Status: kernelwright.RunRunning})
	w.check(err)
	w.check(w.store.Pause(t.Context(), 6))
	for _, c := range []struct {
		path string
		want []string
	}{
		{"/runs/1", []string{"/runs/1/retry"}},
		{"/runs/5", []string{"/runs/5/cancel", "/runs/5/pause"}},
		{"/runs/6", []string{"/runs/6/cancel", "/runs/6/resume"}},
		{fmt.Sprintf("/runs/%d", typed.ID), nil},
		{"/", []string{"/queue/pause", "/runs/7/priority", "/runs/7/pause", "/runs/7/cancel", "/runs/5/priority", "/runs/5/pause", "/runs/5/cancel", "/runs/6/priority", "/runs/6/resume", "/runs/6/cancel"}},
	} {
		if found := offers(c.path); !slices.Equal(found, c.want) {
			t.Errorf("%s offers %q, not %q", c.path, found, c.want)
		}
	}
	for _, offered := range []string{"/runs/1/retry", "/runs/5/pause", "/runs/5/cancel", "/runs/6/resume", "/runs/6/cancel"} {
		if r := w.ask("POST", offered, ""); r.code != http.StatusSeeOther {
			t.Errorf("%s is offered and refused: %d", offered, r.code)
		}
	}
	w.check(w.store.PauseQueue(t.Context(), true))
	if found := offers("/"); !slices.Contains(found, "/queue/resume") || slices.Contains(found, "/queue/pause") {
		t.Errorf("a queue that is paused: %q", found)
	}
}

// A page has the load of a device before any event came.
func TestDevicesHaveTheirLoadAtOnce(t *testing.T) {
	load := 0.42
	w := newWorld(t, func(o *Options) {
		o.Devices = func(context.Context) []Gauges { return []Gauges{{Device: "cpu", Name: "2 cores", Load: &load}} }
	})
	w.fill()
	if body := w.ask("GET", "/", "").body; !strings.Contains(body, `data-gauge="load">42 %<`) || !strings.Contains(body, `data-gauge="load">–<`) {
		t.Error(body)
	}
}

// From a stage's page a link leads to the samples of each step, the best first.
func TestSamplesByStep(t *testing.T) {
	w := newWorld(t, nil)
	w.fill()
	runs := w.train()
	body := w.ask("GET", "/training/1/agentic", "").body
	for _, want := range []string{`<a href="/training/samples?version=p1-agentic-1-train-0">step 1</a></td><td class="n">2</td><td class="n">1</td><td class="n">1</td><td class="n">1</td><td class="n">1</td>`, `version=p1-agentic-1-train-1">step 2</a></td><td class="n">1</td>`} {
		if !strings.Contains(body, want) {
			t.Errorf("the stage lacks %s", want)
		}
	}
	body = w.ask("GET", "/training/samples?version=p1-agentic-1-train-0", "").body
	best, worst := fmt.Sprintf(`id="episode-%d"`, runs[1]), fmt.Sprintf(`id="episode-%d"`, runs[0])
	if at := strings.Index(body, best); at < 0 || at > strings.Index(body, worst) {
		t.Error("the best is not first")
	}
	for _, want := range []string{"Samples of step 1", "reward 3", "reward -1", "&lt;i&gt;a candidate", "An answer &lt;b&gt;.", "write &lt;it&gt;", `version=p1-agentic-1-train-1" rel="next">step 2`, `href="/training/1/agentic?attempt=1&amp;step=1#samples"`, `class="src"`, fmt.Sprintf(`href="/runs/%d/rounds/0"`, runs[1])} {
		if !strings.Contains(body, want) {
			t.Errorf("the samples lack %s", want)
		}
	}
	if strings.Contains(body, fmt.Sprintf("episode-%d", runs[2])) {
		t.Error("a sample of another step")
	}
}

func TestDownloads(t *testing.T) {
	w := newWorld(t, nil)
	w.fill()
	d := recorded(t)[0]
	best, v, _ := report.Best(d.Rounds)
	for path, want := range map[string]string{
		"/runs/1/kernel.py": v.Exported, "/runs/1/certificate.json": v.ExportedSHA256, "/runs/1/reference.py": d.Task.Source, "/runs/1/report.html": "<!doctype html>",
		fmt.Sprintf("/runs/1/rounds/%d/source.py", best.Index): best.Candidate.Source,
	} {
		r := w.ask("GET", path, "")
		if r.code != http.StatusOK || want == "" || !strings.Contains(r.body, want) {
			t.Errorf("%s: %d", path, r.code)
		}
	}
	if r := w.ask("GET", "/runs/3/kernel.py", ""); r.code == http.StatusOK && !strings.Contains(r.body, "ModelNew") {
		t.Errorf("%d", r.code)
	}
	if r := w.ask("GET", "/runs/9/kernel.py", ""); r.code != http.StatusNotFound {
		t.Errorf("%d", r.code)
	}
}

// Times and plots hold values that are no numbers.
func TestPlotsHoldAnyValue(t *testing.T) {
	nan := func() float64 { var z float64; return z / z }()
	for _, ys := range [][]float64{nil, {1}, {nan}, {1, 1, 1}, {1, nan, 3}, {-1e300, 1e300}, make([]float64, 5000)} {
		xs := make([]float64, len(ys))
		for i := range xs {
			xs[i] = float64(i)
		}
		p := linePlot("x", series{"x", 1, xs, ys})
		for _, l := range p.Lines {
			if strings.Contains(l.Path, "NaN") || strings.Contains(l.Path, "Inf") || len(l.Path) > 8000 {
				t.Errorf("%v: %.200s", ys, l.Path)
			}
		}
	}
	if s := short(5, "a\x1bbcdefgh"); strings.ContainsFunc(s, unicode.IsControl) || len([]rune(s)) != 5 {
		t.Errorf("%q", s)
	}
}
