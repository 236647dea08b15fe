package store

import (
	"context"
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
