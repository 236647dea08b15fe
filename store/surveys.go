package store

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/kernelwright/kernelwright"
)

// BestFigures returns the key figures of the best kernel of each of these tasks on each
// device that has a correct one: the fastest certified one, where there is one.
func (s *Store) BestFigures(ctx context.Context, tasks []string) ([]Figures, error) {
	list, err := json.Marshal(append([]string{}, tasks...))
	if err != nil {
		return nil, err
	}
	rows, err := s.read.QueryContext(ctx, figuresQuery+`json_each(?) asked CROSS JOIN devices d
		CROSS JOIN rounds r ON (r.run, r.idx) = (SELECT b.run, b.idx FROM rounds b WHERE b.task = asked.value AND b.device_key = d.key AND b.standing > 0
			ORDER BY b.standing DESC, b.ms, b.run, b.idx LIMIT 1)
		LEFT JOIN certificates e ON e.run = r.run AND e.idx = r.idx`+figuresJoins, string(list))
	if err != nil {
		return nil, err
	}
	return scanAll(rows, scanFigures)
}

// TaskSpending is what was asked of models for the runs of one task.
type TaskSpending struct {
	TaskName string `json:"task_name"`
	Runs     int64  `json:"runs"`
	kernelwright.Spend
}

// SpendingByTask returns what was spent on each name of a task since a time, the most
// first.
func (s *Store) SpendingByTask(ctx context.Context, sinceMS int64, limit int) ([]TaskSpending, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT task_name, count(DISTINCT run), `+spendColumns+` FROM charges JOIN runs ON runs.id = charges.run
		WHERE ended >= ? GROUP BY task_name ORDER BY sum(cost_usd) DESC, sum(tokens_in + tokens_out) DESC, task_name LIMIT ?`, sinceMS, limit)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (t TaskSpending, err error) {
		return t, r.Scan(append([]any{&t.TaskName, &t.Runs}, spendInto(&t.Spend)...)...)
	})
}
