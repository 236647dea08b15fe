package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"

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
	const live = `SELECT task_name, run, ` + spendColumns + ` FROM charges JOIN runs ON runs.id = charges.run WHERE `
	var sums []string
	for name := range strings.SplitSeq(spendNames, ", ") {
		sums = append(sums, "sum("+name+")")
	}
	rows, err := s.read.QueryContext(ctx, `SELECT task_name, count(DISTINCT run), `+strings.Join(sums, ", ")+` FROM (SELECT task_name, run, `+spendNames+` FROM charge_runs WHERE day >= ?2 / 86400000
		UNION ALL SELECT * FROM (`+live+`ended >= max(?1, `+summedUntil+`) GROUP BY 1, 2)
		UNION ALL SELECT * FROM (`+live+`ended >= ?1 AND ended < min(?2, `+summedUntil+`) GROUP BY 1, 2))
		GROUP BY task_name ORDER BY sum(cost_usd) DESC, sum(tokens_in + tokens_out) DESC, task_name LIMIT ?3`, sinceMS, nextDay(sinceMS), limit)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (t TaskSpending, err error) {
		return t, r.Scan(append([]any{&t.TaskName, &t.Runs}, spendInto(&t.Spend)...)...)
	})
}
