// A client in Go that is generated of the API's document, at work on a daemon, and the
// linter of Prometheus' own on its metrics: check.py lays it beside the generated file.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func main() {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Minute)
	err := use(ctx, os.Args[1], os.Getenv("KERNELWRIGHT_API_TOKEN"))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "the client in Go:", err)
		os.Exit(1)
	}
}

func use(ctx context.Context, url, token string) error {
	c, err := NewClientWithResponses(url, WithRequestEditorFn(func(_ context.Context, q *http.Request) error {
		q.Header.Set("Authorization", "Bearer "+token)
		return nil
	}))
	if err != nil {
		return err
	}
	if err := lint(ctx, c); err != nil {
		return err
	}
	if r, err := c.PostQueuePauseWithResponse(ctx); err != nil || r.JSON200 == nil || !r.JSON200.Paused {
		return fmt.Errorf("pause the queue: %v", said(r, err))
	}
	heard := make(chan error, 1)
	listening := make(chan struct{})
	go func() { heard <- listen(ctx, c, listening) }()
	select {
	case <-listening:
	case err := <-heard:
		return err
	}
	run, err := submit(ctx, c)
	if err != nil {
		return err
	}
	if err := hold(ctx, c, run); err != nil {
		return err
	}
	limit := int64(3)
	runs, err := c.GetRunsWithResponse(ctx, &GetRunsParams{Limit: &limit})
	if err != nil || runs.JSON200 == nil || len(runs.JSON200.Items) != 3 || runs.JSON200.Next == nil {
		return fmt.Errorf("list runs: %v", said(runs, err))
	}
	next, err := c.GetRunsWithResponse(ctx, &GetRunsParams{Limit: &limit, Cursor: runs.JSON200.Next})
	if err != nil || next.JSON200 == nil || next.JSON200.Items[0].Id >= runs.JSON200.Items[2].Id {
		return fmt.Errorf("the next page: %v", said(next, err))
	}
	tasks, err := c.GetTasksWithResponse(ctx, &GetTasksParams{})
	if err != nil || tasks.JSON200 == nil || len(tasks.JSON200.Items) == 0 {
		return fmt.Errorf("list tasks: %v", said(tasks, err))
	}
	finished, last := GetRunsParamsStatus("done"), int64(0)
	for _, task := range tasks.JSON200.Items {
		done, err := c.GetRunsWithResponse(ctx, &GetRunsParams{Task: task.Fingerprint, Status: &finished})
		if err != nil || done.JSON200 == nil {
			return fmt.Errorf("list a task's runs that are done: %v", said(done, err))
		}
		if len(done.JSON200.Items) > 0 {
			last = done.JSON200.Items[0].Id
		}
	}
	one, err := c.GetRunsRunWithResponse(ctx, last)
	if err != nil || one.JSON200 == nil || one.JSON200.Run.Id != last || one.JSON200.Task == nil || one.JSON200.Run.Created.IsZero() {
		return fmt.Errorf("show a run: %v", said(one, err))
	}
	rounds, err := c.GetRunsRunRoundsWithResponse(ctx, last, &GetRunsRunRoundsParams{})
	if err != nil || rounds.JSON200 == nil || len(rounds.JSON200.Items) == 0 {
		return fmt.Errorf("list its rounds: %v", said(rounds, err))
	}
	none, err := c.GetRunsRunWithResponse(ctx, 1<<40)
	if err != nil || none.JSON404 == nil || none.JSON404.Error == "" {
		return fmt.Errorf("a run that is not there: %v", said(none, err))
	}
	if r, err := c.PostQueueResumeWithResponse(ctx); err != nil || r.JSON200 == nil || r.JSON200.Paused {
		return fmt.Errorf("resume the queue: %v", said(r, err))
	}
	return <-heard
}

// said is what a call came to, for people.
func said(answer any, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%+v", answer)
}

// lint has Prometheus look at the metrics.
func lint(ctx context.Context, c *ClientWithResponses) error {
	r, err := c.GetMetricsWithResponse(ctx)
	if err != nil || r.StatusCode() != http.StatusOK {
		return fmt.Errorf("metrics: %v", said(r, err))
	}
	problems, err := promlint.New(strings.NewReader(string(r.Body))).Lint()
	if err != nil || len(problems) > 0 {
		return fmt.Errorf("metrics: %v, %v", problems, err)
	}
	fmt.Printf("promlint: %d lines, no problem\n", strings.Count(string(r.Body), "\n"))
	return nil
}

// submit sends a reference and returns the number of its run.
func submit(ctx context.Context, c *ClientWithResponses) (int64, error) {
	sent, err := c.PostTasksWithResponse(ctx, nil, Upload{Name: "by_go.py", Source: source})
	if err != nil || sent.JSON201 == nil || sent.JSON201.Run == nil {
		return 0, fmt.Errorf("submit: %v", said(sent, err))
	}
	again, err := c.PostTasksWithResponse(ctx, nil, Upload{Name: "by_go.py", Source: source})
	if err != nil || again.JSON200 == nil || again.JSON200.Sha256 != sent.JSON201.Sha256 {
		return 0, fmt.Errorf("submit again: %v", said(again, err))
	}
	return *sent.JSON201.Run, nil
}

// hold pauses a run, lets it go on, gives it a priority and takes it off the queue.
func hold(ctx context.Context, c *ClientWithResponses, run int64) error {
	if r, err := c.PostRunsRunPauseWithResponse(ctx, run); err != nil || r.JSON200 == nil || r.JSON200.Hold == nil || *r.JSON200.Hold != "paused" {
		return fmt.Errorf("pause run %d: %v", run, said(r, err))
	}
	if r, err := c.PostRunsRunResumeWithResponse(ctx, run); err != nil || r.JSON200 == nil || r.JSON200.Hold != nil {
		return fmt.Errorf("resume run %d: %v", run, said(r, err))
	}
	if r, err := c.PutRunsRunPriorityWithResponse(ctx, run, Priority{Priority: 7}); err != nil || r.JSON200 == nil {
		return fmt.Errorf("the priority of run %d: %v", run, said(r, err))
	}
	if r, err := c.PutRunsRunPriorityWithResponse(ctx, run, Priority{Priority: 7000}); err != nil || r.JSON400 == nil {
		return fmt.Errorf("a priority that is none: %v", said(r, err))
	}
	if r, err := c.PostRunsRunCancelWithResponse(ctx, run); err != nil || r.JSON200 == nil || r.JSON200.Run.Status == nil || *r.JSON200.Run.Status != "cancelled" {
		return fmt.Errorf("cancel run %d: %v", run, said(r, err))
	}
	return nil
}

// listen hears events until a run is cancelled.
func listen(ctx context.Context, c *ClientWithResponses, listening chan<- struct{}) error {
	kinds := []string{"run", "queue"}
	r, err := c.GetEvents(ctx, &GetEventsParams{Kinds: &kinds})
	if err != nil {
		return err
	}
	defer r.Body.Close()
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		switch text := lines.Text(); {
		case text == "event: ready":
			close(listening)
		case strings.HasPrefix(text, "data: ") && strings.Contains(text, `"status":"cancelled"`):
			return nil
		}
	}
	return fmt.Errorf("the events end: %s", r.Status)
}

const source = `import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(x) * 2.5


def get_inputs():
    return [torch.rand(64, 64)]


def get_init_inputs():
    return []
`
