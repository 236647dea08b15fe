package api

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kernelwright/kernelwright/store"
)

// counter counts what the API did.
type counter struct{ requests atomic.Int64 }

type state struct {
	Status  string   `json:"status" doc:"ok, or ready."`
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
	family("kernelwright_http_requests_total", "counter", "Requests to this API.")
	fmt.Fprintf(&b, "kernelwright_http_requests_total %d\n", a.counts.requests.Load())
	return b.String()
}
