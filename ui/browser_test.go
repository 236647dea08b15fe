package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/internal/soak"
	"github.com/kernelwright/kernelwright/report"
)

// axeEnv names the script of axe, an accessibility checker; make axe brings it.
const axeEnv = "KERNELWRIGHT_TEST_AXE"

// browser is a real one, on one page at a time.
type browser struct {
	*world
	ctx context.Context
	axe string

	mu      sync.Mutex
	said    []string // on the console, and what could not be loaded
	foreign []string // requests to elsewhere
}

// newBrowser starts Chromium, or skips the test where there is none.
func newBrowser(t *testing.T, w *world) *browser {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		t.Skip("no Chromium is installed here: pages are not looked at in a browser")
	}
	b := &browser{world: w}
	if path := os.Getenv(axeEnv); path != "" {
		text, err := os.ReadFile(path)
		w.check(err)
		b.axe = string(text)
	}
	flags := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(program), chromedp.UserDataDir(filepath.Join(t.TempDir(), "profile")), chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	if os.Getuid() == 0 {
		flags = append(flags, chromedp.NoSandbox)
	}
	of, stop := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), flags...)
	ctx, end := chromedp.NewContext(of)
	b.ctx = ctx
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Log("the browser ended with", err)
		}
		end()
		stop()
	})
	w.check(chromedp.Listen(ctx, b.listen))
	_, err := chromedp.Call(ctx, log.Enable, cdp.Empty{})
	w.check(err)
	return b
}

// listen keeps what a page complains of, and what it asks of others.
func (b *browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.said = append(b.said, e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			b.said = append(b.said, fmt.Sprint(e.Type, e.Args))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.said = append(b.said, e.Entry.Text+" "+e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err == nil && u.Scheme != "data" && u.Host != strings.TrimPrefix(b.http.URL, "http://") {
			b.foreign = append(b.foreign, e.Request.URL)
		}
	}
}

// look is what is held against a page: a finding a line.
const look = `(() => {
	const found = [];
	const root = document.documentElement;
	if (root.scrollWidth > root.clientWidth) {
		const wide = [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > root.clientWidth + 1 && !e.closest(".scroll, pre, svg"));
		found.push("it is wider than the screen: " + root.scrollWidth + " of " + root.clientWidth + ", " + wide.slice(0, 3).map((e) => e.tagName + "." + e.className).join(", "));
	}
	if (!document.querySelector("h1")) found.push("it has no heading");
	if (!document.title.includes("kernelwright")) found.push("it has no title");
	return found;
})()`

// audit runs axe with the rules of WCAG 2.1 A and AA and its best practices.
const audit = `axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.map((v) => v.id + ": " + v.help + ": " + v.nodes.slice(0, 2).map((n) => n.html.slice(0, 160)).join(" | ")))`

// evaluate returns what an expression is on the page.
func evaluate[T any](b *browser, expression string, how ...chromedp.EvaluateOption) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, how...))
	if err != nil {
		b.t.Fatalf("%.200s: %v", expression, err)
	}
	return v
}

// visit opens a page and returns what is wrong with it.
func (b *browser) visit(path string, axe bool) (found []string) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, chromedp.Navigate(b.http.URL+path)); err != nil {
		b.t.Fatal(path, err)
	}
	found = evaluate[[]string](b, look)
	if axe && b.axe != "" {
		evaluate[int](b, b.axe+";0")
		found = append(found, evaluate[[]string](b, audit, chromedp.EvalAwaitPromise)...)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	found = append(found, b.said...)
	found = append(found, b.foreign...)
	b.said, b.foreign = nil, nil
	return found
}

// screen sets the width of the screen and its colours.
func (b *browser) screen(width int64, dark bool) {
	b.t.Helper()
	scheme := map[bool]string{false: "light", true: "dark"}[dark]
	_, err := chromedp.Call(b.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 900, DeviceScaleFactor: 1, Mobile: width < 500})
	b.check(err)
	_, err = chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}) //nolint:misspell // CSS says so
	b.check(err)
}

// picture writes how a page looks.
func (b *browser) picture(dir, name string) {
	b.t.Helper()
	image, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(62))
	b.check(err)
	b.check(os.WriteFile(filepath.Join(dir, name+".jpg"), image, 0o600))
}

// withReports serves beside the pages the files that people send each other, which are shown
// to nobody else than who opens them.
func (w *world) withReports() {
	pages, files := w.http.Config.Handler, http.NewServeMux()
	show := func(path string, write func(ctx context.Context, to io.Writer) error) {
		files.HandleFunc(path, func(rw http.ResponseWriter, r *http.Request) { w.check(write(r.Context(), rw)) })
	}
	for _, run := range []int64{1, 3} {
		show(fmt.Sprint("/file/run/", run), func(ctx context.Context, to io.Writer) error {
			d, err := daemon.Load(ctx, w.store, run)
			w.check(err)
			return report.HTML(to, d)
		})
	}
	show("/file/bench", func(ctx context.Context, to io.Writer) error {
		b, err := w.bench(ctx, 1)
		w.check(err)
		return report.BenchHTML(to, b, report.Figures(b))
	})
	files.Handle("/", pages)
	w.http.Config.Handler = files
}

// shownPages are those whose look differs: the rest are the same templates.
var shownPages = []string{"/", "/runs/1", "/runs/3", "/runs/1/rounds/2", "/runs/3/talk", "/history", "/history?q=gelu", "/compare?a=1&b=2", "/tasks", "/lessons", "/benches", "/benches/1", "/audits", "/audits/1", "/training", "/training/1", "/training/1/rft", "/training/1/agentic", "/training/samples?version=p1-agentic-1-train-0", "/training/samples", "/policies", "/policies/1", "/policies/2/promote", "/costs", "/nowhere", "/file/run/1", "/file/run/3", "/file/bench"}

// A real browser shows every page on a desk, a tablet and a phone, by day and by night:
// nothing is wider than the screen, nothing is complained of, nothing is asked of others,
// and axe finds nothing.
func TestPagesInABrowser(t *testing.T) {
	w := newWorld(t, nil)
	w.fill()
	w.train()
	w.withReports()
	b := newBrowser(t, w)
	if b.axe == "" {
		t.Logf("%s is not set: accessibility is not checked (make axe)", axeEnv)
	}
	pictures := os.Getenv("KERNELWRIGHT_TEST_PICTURES")
	for i, s := range []struct {
		width int64
		dark  bool
	}{{1440, false}, {768, true}, {390, false}, {390, true}, {1440, true}, {768, false}} {
		b.screen(s.width, s.dark)
		for j, path := range shownPages {
			// By day each page is on a phone, and once elsewhere, where axe looks at it.
			axe := (j+soak.Day(t))%2 == i
			if soak.Daily() && pictures == "" && i != 3 && !axe {
				continue
			}
			for _, found := range b.visit(path, axe || !soak.Daily()) {
				if path == "/nowhere" && strings.Contains(found, "404") {
					continue
				}
				t.Errorf("%s, %d wide, dark %v: %s", path, s.width, s.dark, found)
			}
			if pictures != "" {
				b.picture(pictures, fmt.Sprintf("%s-%d-%v", strings.Trim(strings.NewReplacer("/", "-", "?", "-", "&", "-", "=", "-").Replace(path), "-"), s.width, map[bool]string{true: "dark", false: "light"}[s.dark]))
			}
		}
	}
}

// What pages do: by keyboard, by a file that is dropped, live, and with a confirmation.
func TestActionsInABrowser(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Token, o.ReadToken = token, readToken })
	w.fill()
	b := newBrowser(t, w)
	b.screen(1440, false)
	at := func() string {
		b.t.Helper()
		return evaluate[string](b, "location.pathname + location.search")
	}
	// lead does something that opens a page, and waits until it is there.
	lead := func(want string, do ...chromedp.Action[chromedp.Void]) {
		b.t.Helper()
		if _, err := chromedp.RunResponse(b.ctx, do...); err != nil {
			b.t.Fatal(want, ": ", err)
		}
		if found := at(); found != want {
			b.t.Fatalf("it leads to %s, not to %s", found, want)
		}
	}
	run := func(script string) chromedp.Action[chromedp.Void] {
		return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
			_, err := chromedp.Run(ctx, chromedp.Evaluate[int](script+";0"))
			return err
		})
	}
	open := func(path string) {
		b.t.Helper()
		b.check(chromedp.Do(b.ctx, chromedp.Navigate(b.http.URL+path)))
	}
	wait := func(what, condition string) {
		b.t.Helper()
		ctx, cancel := context.WithTimeout(b.ctx, 3*time.Minute)
		defer cancel()
		script := "new Promise((done) => { const look = () => (" + condition + ") ? done(1) : setTimeout(look, 20); look(); })"
		if _, err := chromedp.Run(ctx, chromedp.Evaluate[int](script, chromedp.EvalAwaitPromise)); err != nil {
			b.t.Fatal(what, ": ", err)
		}
	}
	open("/runs/1")
	if at() != "/login?next=%2Fruns%2F1" {
		t.Fatal(at())
	}
	// The field has the focus, and Enter sends.
	lead("/runs/1", chromedp.KeyEvent(token+"\r"))

	b.check(chromedp.Do(b.ctx, chromedp.KeyEvent("\t")))
	if focused := evaluate[string](b, `document.activeElement.className`); focused != "skip" {
		t.Errorf("the first key leads to %q, not past the menu", focused)
	}

	open("/")
	wait("the load of a device", `document.querySelector('[data-device="cpu"] [data-gauge="load"]').textContent === "42 %"`)
	came := recorded(t)[0].Rounds[0]
	came.RunID, came.Index, came.Certificate = 4, len(recorded(t)[0].Rounds), nil
	b.check(w.store.AppendRound(t.Context(), came))
	wait("a round that came", `performance.getEntriesByType("resource").some((e) => e.name.endsWith("/now/live"))`)
	lead("/?sent=dropped.py", run(`(() => {
		const data = new DataTransfer();
		data.items.add(new File(["class Model: pass\n"], "dropped.py", {type: "text/x-python"}));
		for (const name of ["dragover", "drop"]) document.body.dispatchEvent(new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true}));
	})()`))

	for _, c := range []struct{ path, selector, then string }{
		{"/", `form[action="/runs/6/cancel"] button`, "/"},
		{"/", `form[action$="/priority"] button`, "/"},
		{"/runs/1", `form[action="/runs/1/retry"] button`, "/runs/9"},
		{"/policies/2", `a[href="/policies/2/promote"]`, "/policies/2/promote"},
		{"/policies/2/promote", "form.stackform button", "/policies/2"},
		{"/policies/rollback", "form.stackform button", "/policies"},
		{"/history", `form[action="/history"] button`, "/history?q=&operator=&device=&language=&verdict=&speedup=&model=&since=&until="},
		{"/runs/1/rounds/2", `form.filters button`, "/runs/1/rounds/2?with=0"},
		{"/", `form[action="/logout"] button`, "/login"},
	} {
		open(c.path)
		lead(c.then, run(fmt.Sprintf("document.querySelector(%q).click()", c.selector)))
	}
	for _, want := range []string{"POST /api/v1/tasks", "POST /api/v1/runs/6/cancel", "PUT /api/v1/runs/", "POST /api/v1/runs/1/retry", "POST /api/v1/policies/2/promote", "POST /api/v1/policies/rollback"} {
		if !slices.ContainsFunc(w.calls, func(c string) bool { return strings.HasPrefix(c, want) && strings.Contains(c, "Bearer "+token) }) {
			t.Errorf("%s was not asked for: %q", want, w.calls)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.said)+len(b.foreign) > 0 {
		text, _ := json.Marshal(append(b.said, b.foreign...))
		t.Errorf("the browser says: %s", text)
	}
}
