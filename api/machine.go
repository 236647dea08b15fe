package api

import (
	"context"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// tasksSpent is how many tasks are told of, those that took most.
const tasksSpent = 50

// queuePage is a page of the queue.
type queuePage struct {
	Items  []store.Queued `json:"items" nullable:"false"`
	Next   string         `json:"next" doc:"The cursor of the next page; null: this is the last."`
	Paused bool           `json:"paused" doc:"All that waits is held back."`
}

// machine has the routes of devices, costs, the queue and statistics.
func (a *API) machine() {
	get(a, "/api/v1/devices", "List devices that were ever recorded, the latest first.", func(ctx context.Context, in *Paged) (*answer[list[kernelwright.Device]], error) {
		found, err := a.o.Store.Devices(ctx)
		if err != nil {
			return nil, err
		}
		return slice(*in, found)
	})
	get(a, "/api/v1/costs", "List what was spent on language models, by day (UTC) and model, the latest day first.", func(ctx context.Context, in *struct {
		Paged
		Since string `query:"since" maxLength:"40" doc:"From this day on: a date, or a time in ISO 8601."`
	}) (*answer[list[store.Spending]], error) {
		since, err := moment("since", in.Since)
		if err != nil {
			return nil, err
		}
		found, err := a.o.Store.Spending(ctx, since)
		if err != nil {
			return nil, err
		}
		return slice(in.Paged, found)
	})
	get(a, "/api/v1/costs/tasks", "List what was spent on language models by task: the 50 that took most.", func(ctx context.Context, in *struct {
		Paged
		Since string `query:"since" maxLength:"40" doc:"From this day on (UTC): a date, or a time in ISO 8601."`
	}) (*answer[list[store.TaskSpending]], error) {
		since, err := moment("since", in.Since)
		if err != nil {
			return nil, err
		}
		found, err := a.o.Store.SpendingByTask(ctx, since, tasksSpent)
		if err != nil {
			return nil, err
		}
		return slice(in.Paged, found)
	})
	get(a, "/api/v1/queue", "List the queue: what is worked on, then what waits, in its order.", func(ctx context.Context, in *Paged) (*answer[queuePage], error) {
		var after store.Queued
		if err := in.from(&after); err != nil {
			return nil, err
		}
		found, err := a.o.Store.Queue(ctx, after, in.Limit+1)
		p, err := page(*in, found, func(q store.Queued) store.Queued {
			return store.Queued{State: q.State, Priority: q.Priority, Job: q.Job}
		}, err)
		if err != nil {
			return nil, err
		}
		paused, err := a.o.Store.QueuePaused(ctx)
		return say(queuePage{p.Body.Items, p.Body.Next, paused}, err)
	})
	get(a, "/api/v1/stats", "How much there is of what.", func(ctx context.Context, _ *struct{}) (*answer[store.Counts], error) {
		return say(a.o.Store.Counts(ctx))
	})
}
