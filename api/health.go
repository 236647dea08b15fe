package api

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kernelwright/kernelwright/store"
)

// counter counts what the API did.
type counter struct{ requests atomic.Int64 }

type state struct {
	Status  string   `json:"status" nullable:"false" doc:"ok, or ready."`
	Version string   `json:"version"`
	Devices []string `json:"devices,omitempty"`
}

// text is an answer that is a text.
type text struct {
	ContentType string `header:"Content-Type"`
	Body        []byte
}

// health has the routes for who looks after the daemon.
func (a *API) health() {
	get(a, "/healthz", "Whether the daemon is alive.", func(context.Context, *struct{}) (*answer[state], error) {
		return say(state{Status: "ok", Version: a.o.Version}, nil)
	})
	get(a, "/readyz", "Whether the record is usable and devices take runs.", func(ctx context.Context, _ *struct{}) (*answer[state], error) {
		devices := a.ready()
		if err := a.o.Store.Usable(); err != nil {
			return nil, &Problem{Text: "the record is not usable", Hint: "the daemon's log has more", Code: http.StatusServiceUnavailable, retry: true}
		}
		if len(devices) == 0 {
			return nil, &Problem{Text: "no device takes runs yet", Hint: "it is being made ready: ask again", Code: http.StatusServiceUnavailable, retry: true}
		}
		s := state{Status: "ready", Version: a.o.Version}
		for _, d := range devices {
			s.Devices = append(s.Devices, d.String())
		}
		return say(s, nil)
	})
	op := operation(http.MethodGet, "/metrics", "Metrics in Prometheus' text format.")
	op.Responses = map[string]*huma.Response{"200": {Description: "OK", Content: map[string]*huma.MediaType{"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}}}}}
	huma.Register(a.huma, op, func(ctx context.Context, _ *struct{}) (*text, error) {
		c, err := a.o.Store.Counts(ctx)
		if err != nil {
			return nil, a.problem(ctx, err)
		}
		return &text{"text/plain; version=0.0.4; charset=utf-8", []byte(a.exposition(c))}, nil
	})
}

// exposition writes metrics as Prometheus reads them:
// prometheus.io/docs/instrumenting/exposition_formats.
func (a *API) exposition(c store.Counts) string {
	var b strings.Builder
	family := func(name, kind, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	label := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	family("kernelwright_build_info", "gauge", "The version, as a label.")
	fmt.Fprintf(&b, "kernelwright_build_info{version=\"%s\"} 1\n", label.Replace(a.o.Version))
	family("kernelwright_runs", "gauge", "Recorded runs by status.")
	for _, status := range slices.Sorted(maps.Keys(c.Runs)) {
		fmt.Fprintf(&b, "kernelwright_runs{status=\"%s\"} %d\n", label.Replace(status), c.Runs[status])
	}
	family("kernelwright_queue_jobs", "gauge", "Runs in the queue by state.")
	fmt.Fprintf(&b, "kernelwright_queue_jobs{state=\"waiting\"} %d\nkernelwright_queue_jobs{state=\"claimed\"} %d\n", c.Waiting, c.Claimed)
	for _, g := range []struct {
		name, help string
		value      int64
	}{
		{"kernelwright_tasks", "Recorded tasks.", c.Tasks}, {"kernelwright_kernels", "Certified kernels.", c.Kernels},
		{"kernelwright_devices_ready", "Devices that take runs.", int64(len(a.ready()))}, {"kernelwright_database_size_bytes", "Size of the database without its log.", c.Bytes},
	} {
		family(g.name, "gauge", g.help)
		fmt.Fprintf(&b, "%s %d\n", g.name, g.value)
	}
	listeners, dropped := a.hub.count()
	family("kernelwright_event_listeners", "gauge", "Who listens to events.")
	fmt.Fprintf(&b, "kernelwright_event_listeners %d\n", listeners)
	family("kernelwright_event_listeners_dropped_total", "counter", "Listeners that read too slowly.")
	fmt.Fprintf(&b, "kernelwright_event_listeners_dropped_total %d\n", dropped)
	for _, m := range process() {
		family(m.name, m.kind, m.help)
		fmt.Fprintf(&b, "%s %s\n", m.name, strconv.FormatFloat(m.value, 'g', -1, 64))
	}
	family("kernelwright_http_requests_total", "counter", "Requests to this API.")
	fmt.Fprintf(&b, "kernelwright_http_requests_total %d\n", a.counts.requests.Load())
	return b.String()
}

// measured is a metric without labels.
type measured struct {
	name, kind, help string
	value            float64
}

// begun is when this process began, nearly.
var begun = time.Now()

// process is what is known of this process, by the names that all exporters give:
// prometheus.io/docs/instrumenting/writing_clientlibs.
func process() []measured {
	all := []measured{
		{"go_goroutines", "gauge", "Goroutines of the daemon.", float64(runtime.NumGoroutine())},
		{"process_start_time_seconds", "gauge", "When the daemon began, since 1970.", float64(begun.UnixMilli()) / 1000},
	}
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err == nil {
		seconds := time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
		all = append(all, measured{"process_cpu_seconds_total", "counter", "Processor time of the daemon, without its workers.", seconds})
	}
	if text, err := os.ReadFile("/proc/self/statm"); err == nil { // proc(5): pages
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			if pages, err := strconv.ParseFloat(fields[1], 64); err == nil {
				all = append(all, measured{"process_resident_memory_bytes", "gauge", "Memory of the daemon, without its workers.", pages * float64(os.Getpagesize())})
			}
		}
	}
	return all
}
