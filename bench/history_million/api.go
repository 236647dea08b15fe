package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright/api"
	"github.com/kernelwright/kernelwright/store"
)

// requests times what is asked of the HTTP API, within this process: with what the calls
// before have left in memory, and with the file dropped from it before each.
func requests(ctx context.Context, db *store.Store, s settings, runs int64) error {
	rng := rand.New(rand.NewPCG(s.seed, 3))
	anyRun := func() int64 { return 1 + rng.Int64N(runs) }
	some, err := db.Run(ctx, anyRun())
	if err != nil {
		return err
	}
	fmt.Println("\n| request | warm | p50 | p99 | cold | p50 | p99 |")
	fmt.Println("|---|---:|---:|---:|---:|---:|---:|")
	for _, q := range []struct {
		name string
		path func() string
	}{
		{"runs", func() string { return "/api/v1/runs" }},
		{"runs, a page", func() string { return fmt.Sprintf("/api/v1/runs?sort=oldest&limit=%d", 1+rng.IntN(200)) }},
		{"runs of a task", func() string { return "/api/v1/runs?name=" + fmt.Sprintf("task_%05d", popular(rng, s.tasks)) }},
		{"runs of a device", func() string { return "/api/v1/runs?device_key=" + some.DeviceKey }},
		{"runs of no device", func() string { return "/api/v1/runs?device_key=none" }},
		{"runs of a status", func() string {
			return "/api/v1/runs?status=" + []string{"done", "failed", "running", "cancelled"}[rng.IntN(4)]
		}},
		{"runs since", func() string {
			return "/api/v1/runs?since=" + time.UnixMilli(1_750_000_000_000+anyRun()*60_000).UTC().Format(time.RFC3339)
		}},
		{"runs until", func() string {
			return "/api/v1/runs?until=" + time.UnixMilli(1_750_000_000_000+anyRun()*60_000).UTC().Format(time.RFC3339)
		}},
		{"runs of no Coder", func() string { return "/api/v1/runs?coder=none" }},
		{"a run", func() string { return fmt.Sprint("/api/v1/runs/", anyRun()) }},
		{"its rounds", func() string { return fmt.Sprintf("/api/v1/runs/%d/rounds", anyRun()) }},
		{"its metrics", func() string { return fmt.Sprintf("/api/v1/runs/%d/metrics", anyRun()) }},
		{"a round", func() string { return fmt.Sprintf("/api/v1/runs/%d/rounds/%d", anyRun(), rng.IntN(s.perRun)) }},
		{"verdicts", func() string { return "/api/v1/verdicts" }},
		{"verdicts of a status", func() string {
			return "/api/v1/verdicts?status=" + []string{"correct", "wrong", "cheated", "certified"}[rng.IntN(4)]
		}},
		{"verdicts of a language", func() string { return "/api/v1/verdicts?language=" + []string{"cpp", "cuda", "triton"}[rng.IntN(3)] }},
		{"verdicts of no device", func() string { return "/api/v1/verdicts?device_key=none" }},
		{"verdicts of a task", func() string { return "/api/v1/verdicts?name=" + fmt.Sprintf("task_%05d", popular(rng, s.tasks)) }},
		{"kernels", func() string { return "/api/v1/kernels" }},
		{"kernels of a task", func() string { return "/api/v1/kernels?name=" + fmt.Sprintf("task_%05d", popular(rng, s.tasks)) }},
		{"kernels of a language", func() string { return "/api/v1/kernels?language=" + []string{"cpp", "cuda"}[rng.IntN(2)] }},
		{"tasks", func() string { return "/api/v1/tasks" }},
		{"tasks of a name", func() string { return "/api/v1/tasks?name=" + fmt.Sprintf("task_%05d", rng.IntN(s.tasks)) }},
		{"lessons", func() string { return "/api/v1/lessons" }},
		{"queue", func() string { return "/api/v1/queue" }},
		{"costs", func() string { return "/api/v1/costs" }},
		{"stats", func() string { return "/api/v1/stats" }},
		{"metrics of all", func() string { return "/metrics" }},
	} {
		line := "| " + q.name + " |"
		for _, way := range []struct {
			n    int
			cold bool
		}{{s.calls, false}, {s.commands, true}} {
			took := make([]time.Duration, way.n)
			for i := range took {
				if took[i], err = ask(ctx, db, q.path(), way.cold); err != nil {
					return err
				}
			}
			if slices.Sort(took); way.n > 0 {
				line += fmt.Sprintf(" %d | %s | %s |", way.n, quantile(took, 0.5), quantile(took, 0.99))
			} else {
				line += " – | – | – |"
			}
		}
		fmt.Println(line)
	}
	return nil
}

// ask asks once, and returns how long the answer took.
func ask(ctx context.Context, db *store.Store, path string, cold bool) (took time.Duration, err error) {
	if cold {
		if err := forget(db.Path()); err != nil {
			return 0, err
		}
		fresh, err := store.OpenToRead(db.Path())
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, fresh.Close()) }()
		db = fresh
	}
	a := api.New(api.Options{Store: db, Version: "measured"})
	defer a.Close()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1"+path, nil)
	got := httptest.NewRecorder()
	began := time.Now()
	a.ServeHTTP(got, r)
	if got.Code != http.StatusOK {
		return 0, fmt.Errorf("%s: %d %.300s", path, got.Code, got.Body)
	}
	return time.Since(began), nil
}

// forget has the system drop a file from memory.
func forget(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}
