package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// Book records an attempt at a call and returns what Rebook knows it by:
// llm.Ledger.
func (s *Store) Book(ctx context.Context, c llm.Charge) (id int64, err error) {
	k := c.Key
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, `INSERT INTO charges (run, round, agent, seq, model, tokens_in, tokens_out, cached, written, thought, estimated, cost_usd, ended, took, failed)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id`,
			append([]any{ofRun(k), k.Round, k.Agent, k.Seq, c.Model}, cost(c)...)...).Scan(&id)
		if err != nil {
			return err
		}
		return sumCharges(ctx, tx, c.EndedMS)
	})
	if err != nil {
		return 0, fmt.Errorf("record what a call of %s may cost: %w", c.Model, err)
	}
	return id, nil
}

// Rebook records how an attempt ended that was booked: llm.Ledger.
func (s *Store) Rebook(ctx context.Context, id int64, c llm.Charge) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		var before int64
		err := tx.QueryRowContext(ctx, `SELECT ended FROM charges WHERE id = ?`, id).Scan(&before)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("charge %d is not there", id)
		}
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE charges SET tokens_in = ?, tokens_out = ?, cached = ?, written = ?, thought = ?, estimated = ?, cost_usd = ?, ended = ?, took = ?, failed = ?
			WHERE id = ?`, append(cost(c), id)...)
		if err != nil {
			return err
		}
		return sumCharges(ctx, tx, before, c.EndedMS)
	})
	if err != nil {
		return fmt.Errorf("record what a call of %s cost: %w", c.Model, err)
	}
	return nil
}

// cost is what the last columns of a charge hold.
func cost(c llm.Charge) []any {
	u := c.Usage
	return []any{u.In, u.Out, u.CachedIn, u.CacheWrite, u.Reasoning, u.Estimated, c.USD, c.EndedMS, c.Took.Milliseconds(), c.Failed}
}

// An attempt that used nothing cost nothing, whatever the price. One that was not
// answered and used something counts at worst.
const spendColumns = `count(*), coalesce(sum(tokens_in), 0), coalesce(sum(tokens_out), 0), coalesce(sum(cost_usd), 0),
	coalesce(sum(cost_usd IS NULL AND tokens_in + tokens_out > 0), 0), coalesce(sum(cached), 0), coalesce(sum(written), 0), coalesce(sum(failed = '` + string(llm.Unfinished) + `'), 0),
	coalesce(sum(failed <> '' AND tokens_in + tokens_out > 0), 0), coalesce(sum(CASE WHEN failed <> '' THEN cost_usd END), 0)`

func spendInto(s *kernelwright.Spend) []any {
	return []any{&s.Calls, &s.TokensIn, &s.TokensOut, &s.USD, &s.Unpriced, &s.CachedIn, &s.CacheWrite, &s.Unfinished, &s.AtWorst, &s.USDAtWorst}
}

// Spent sums the charges within the scope: llm.Ledger.
func (s *Store) Spent(ctx context.Context, of llm.Scope) (llm.Spent, error) {
	var where []string
	var args []any
	narrow := func(condition string, arg any) {
		where, args = append(where, condition), append(args, arg)
	}
	if of.Run != 0 {
		narrow("run = ?", of.Run)
	}
	if !of.Since.IsZero() {
		narrow("ended >= ?", of.Since.UnixMilli())
	}
	if of.Model != "" {
		narrow("model = ?", of.Model)
	}
	for _, id := range of.Except {
		narrow("id <> ?", id)
	}
	query := `SELECT ` + spendColumns + `, coalesce(sum(took), 0) FROM charges`
	if len(where) > 0 {
		query += ` WHERE ` + strings.Join(where, " AND ")
	}
	var spent llm.Spent
	var took int64
	if err := s.read.QueryRowContext(ctx, query, args...).Scan(append(spendInto(&spent.Spend), &took)...); err != nil {
		return spent, fmt.Errorf("read what was spent: %w", err)
	}
	spent.Wall = time.Duration(took) * time.Millisecond
	return spent, nil
}

// Spend returns what a run has asked of models, failed attempts included, and
// what that cost.
func (s *Store) Spend(ctx context.Context, runID int64) (kernelwright.Spend, error) {
	if runID == 0 {
		return kernelwright.Spend{}, nil
	}
	spent, err := s.Spent(ctx, llm.Scope{Run: runID})
	return spent.Spend, err
}

// Unanswered returns a run's attempts at calls that were not answered, in the order
// in which they were made: those that failed, were interrupted or did not come
// back.
func (s *Store) Unanswered(ctx context.Context, runID int64) ([]llm.Charge, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT run, round, agent, seq, model, tokens_in, tokens_out, cached, written, thought, estimated, cost_usd, ended, took, failed
		FROM charges WHERE run = ? AND failed <> '' ORDER BY id`, runID)
	if err != nil {
		return nil, fmt.Errorf("read what was asked and not answered: %w", err)
	}
	return scanAll(rows, func(r *sql.Rows) (c llm.Charge, err error) {
		u, took := &c.Usage, int64(0)
		err = r.Scan(&c.Key.Run, &c.Key.Round, &c.Key.Agent, &c.Key.Seq, &c.Model, &u.In, &u.Out, &u.CachedIn, &u.CacheWrite, &u.Reasoning, &u.Estimated, &c.USD, &c.EndedMS, &took, &c.Failed)
		c.Took = time.Duration(took) * time.Millisecond
		return c, err
	})
}

// RoundUSD returns the dollars of a run by round, as far as prices are known.
func (s *Store) RoundUSD(ctx context.Context, runID int64) (map[int]float64, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT round, sum(cost_usd) FROM charges WHERE run = ? AND cost_usd IS NOT NULL GROUP BY round`, runID)
	if err != nil {
		return nil, fmt.Errorf("read what was spent: %w", err)
	}
	defer rows.Close()
	spent := map[int]float64{}
	for rows.Next() {
		var round int
		var usd float64
		if err := rows.Scan(&round, &usd); err != nil {
			return nil, err
		}
		spent[round] = usd
	}
	return spent, rows.Err()
}

const dayMS = 24 * 60 * 60 * 1000

// Days that are over are summed, so that who asks for years need not read every charge.
const (
	spendNames = `calls, tokens_in, tokens_out, cost_usd, unpriced, cached, written, unfinished, at_worst, usd_at_worst`
	// summedUntil is when the first day begins that is not summed.
	summedUntil = `(SELECT coalesce(max(day) + 1, 0) * 86400000 FROM charge_days)`
	sumDays     = `INSERT INTO charge_days (day, model, ` + spendNames + `) SELECT ended / 86400000, model, ` + spendColumns + ` FROM charges WHERE ended >= ?1 AND ended < ?2 GROUP BY 1, 2`
	sumRuns     = `INSERT INTO charge_runs (day, run, task_name, ` + spendNames + `) SELECT ended / 86400000, run, task_name, ` + spendColumns + ` FROM charges JOIN runs ON runs.id = run WHERE ended >= ?1 AND ended < ?2 GROUP BY 1, 2`
	sumTasks    = `INSERT INTO charge_tasks (task_name, day, ` + spendNames + `) SELECT task_name, day, ` + spendSums + ` FROM charge_runs WHERE day >= ?1 / 86400000 AND day < ?2 / 86400000 GROUP BY 1, 2`

	spendSums = `sum(calls), sum(tokens_in), sum(tokens_out), sum(cost_usd), sum(unpriced), sum(cached), sum(written), sum(unfinished), sum(at_worst), sum(usd_at_worst)`
	// renameCharges gives the sums of a run the name that its task has now.
	renameCharges = `UPDATE charge_runs SET task_name = NEW.task_name WHERE run = NEW.id;
		DELETE FROM charge_tasks WHERE task_name IN (OLD.task_name, NEW.task_name);
		INSERT INTO charge_tasks (task_name, day, ` + spendNames + `) SELECT task_name, day, ` + spendSums + ` FROM charge_runs WHERE task_name IN (OLD.task_name, NEW.task_name) GROUP BY 1, 2`
)

// sumCharges keeps the sums of days that are over, where charges have ended at these times.
func sumCharges(ctx context.Context, tx *sql.Tx, times ...int64) error {
	for _, at := range times {
		var until int64
		if err := tx.QueryRowContext(ctx, `SELECT `+summedUntil).Scan(&until); err != nil {
			return err
		}
		from, to := until, at/dayMS*dayMS // days before that of the charge are over
		if at < until {
			from, to = at/dayMS*dayMS, at/dayMS*dayMS+dayMS
			for _, table := range []string{"charge_days", "charge_runs", "charge_tasks"} {
				if _, err := tx.ExecContext(ctx, `DELETE FROM `+table+` WHERE day = ?`, at/dayMS); err != nil {
					return err
				}
			}
		}
		if from >= to {
			continue
		}
		for _, sum := range []string{sumDays, sumRuns, sumTasks} {
			if _, err := tx.ExecContext(ctx, sum, from, to); err != nil {
				return fmt.Errorf("sum what was spent: %w", err)
			}
		}
	}
	return nil
}

// SumCharges sums the days that are over anew: for who records in bulk.
func SumCharges(ctx context.Context, tx *sql.Tx) error {
	for _, query := range slices.Concat(sumAll, sumAllTasks) {
		if _, err := tx.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	return nil
}

// sumAllTasks follows sumAll.
var sumAllTasks = []string{`DELETE FROM charge_tasks`, strings.NewReplacer("?1", "0", "?2", summedUntil).Replace(sumTasks)}

// sumAll sums all days anew but the last on which anything was asked.
var sumAll = func() []string {
	bounds := strings.NewReplacer("?1", "0", "?2", "(SELECT max(ended) / 86400000 * 86400000 FROM charges)")
	return []string{`DELETE FROM charge_days`, `DELETE FROM charge_runs`, bounds.Replace(sumDays), bounds.Replace(sumRuns)}
}()

// Spending is what one model was asked in one day.
type Spending struct {
	DayMS int64  `json:"day" time:"day"` // when the day began, in UTC
	Model string `json:"model"`
	kernelwright.Spend
}

// Spending returns what was asked of models in calls that ended at or after a
// time (Unix milliseconds; 0: ever), by day in UTC and by model, the latest day
// first.
func (s *Store) Spending(ctx context.Context, sinceMS int64) ([]Spending, error) {
	const live = `SELECT ended / 86400000 * 86400000, model, ` + spendColumns + ` FROM charges WHERE `
	rows, err := s.read.QueryContext(ctx, `SELECT day * 86400000, model, `+spendNames+` FROM charge_days WHERE day >= ?2 / 86400000
		UNION ALL SELECT * FROM (`+live+`ended >= max(?1, `+summedUntil+`) GROUP BY 1, 2)
		UNION ALL SELECT * FROM (`+live+`ended >= ?1 AND ended < min(?2, `+summedUntil+`) GROUP BY 1, 2)
		ORDER BY 1 DESC, 2`, sinceMS, nextDay(sinceMS))
	if err != nil {
		return nil, fmt.Errorf("read what was spent: %w", err)
	}
	return scanAll(rows, func(r *sql.Rows) (day Spending, err error) {
		return day, r.Scan(append([]any{&day.DayMS, &day.Model}, spendInto(&day.Spend)...)...)
	})
}

// nextDay is when the first day begins that a time is not within; the time itself where a
// day begins with it.
func nextDay(ms int64) int64 { return (ms + dayMS - 1) / dayMS * dayMS }
