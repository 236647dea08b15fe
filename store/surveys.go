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

// SpendingByTask returns what was spent on each name of a task from the day in UTC on that a
// time (Unix milliseconds) is in, the most first. Days that are over come from charge_tasks,
// and what was asked since from the charges themselves. So only those tasks are looked at
// that are among the first of the former, or in the latter.
func (s *Store) SpendingByTask(ctx context.Context, sinceMS int64, limit int) ([]TaskSpending, error) {
	const first = ` GROUP BY 1 ORDER BY sum(cost_usd) DESC, sum(tokens_in + tokens_out) DESC, 1 LIMIT ?2`
	rows, err := s.read.QueryContext(ctx, `WITH
		live(run, task_name, `+spendNames+`) AS (SELECT run, task_name, `+spendColumns+` FROM charges INDEXED BY charges_spent JOIN runs ON runs.id = run WHERE ended >= max(?1 * 86400000, `+summedUntil+`) GROUP BY 1),
		asked AS (SELECT task_name FROM live UNION SELECT * FROM (SELECT task_name FROM charge_tasks WHERE day >= ?1`+first+`)),
		spent AS (SELECT task_name, `+spendNames+` FROM charge_tasks WHERE day >= ?1 AND task_name IN asked UNION ALL SELECT task_name, `+spendNames+` FROM live)
		SELECT task_name, (SELECT count(DISTINCT run) FROM charge_runs r WHERE r.task_name = spent.task_name AND day >= ?1)
			+ (SELECT count(*) FROM live WHERE live.task_name = spent.task_name AND NOT EXISTS (SELECT 1 FROM charge_runs r WHERE r.run = live.run AND day >= ?1)), `+spendSums+` FROM spent`+first, floorDay(sinceMS), limit)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (t TaskSpending, err error) {
		return t, r.Scan(append([]any{&t.TaskName, &t.Runs}, spendInto(&t.Spend)...)...)
	})
}
