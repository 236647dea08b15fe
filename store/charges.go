package store

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// Book records an attempt at a call and returns what Rebook knows it by:
// llm.Ledger.
func (s *Store) Book(ctx context.Context, c llm.Charge) (id int64, err error) {
	k := c.Key
	err = s.write.QueryRowContext(ctx, `INSERT INTO charges (run, round, agent, seq, model, tokens_in, tokens_out, cached, written, thought, estimated, cost_usd, ended, took, failed)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id`,
		append([]any{ofRun(k), k.Round, k.Agent, k.Seq, c.Model}, cost(c)...)...).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("record what a call of %s may cost: %w", c.Model, err)
	}
	return id, nil
}

// Rebook records how an attempt ended that was booked: llm.Ledger.
func (s *Store) Rebook(ctx context.Context, id int64, c llm.Charge) error {
	done, err := s.write.ExecContext(ctx, `UPDATE charges SET tokens_in = ?, tokens_out = ?, cached = ?, written = ?, thought = ?, estimated = ?, cost_usd = ?, ended = ?, took = ?, failed = ?
		WHERE id = ?`, append(cost(c), id)...)
	if err == nil {
		var n int64
		if n, err = done.RowsAffected(); err == nil && n != 1 {
			err = fmt.Errorf("charge %d is not there", id)
		}
	}
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
	rows, err := s.read.QueryContext(ctx, `SELECT ended / ?1 * ?1, model, `+spendColumns+` FROM charges WHERE ended >= ?2 GROUP BY 1, 2 ORDER BY 1 DESC, 2`, dayMS, sinceMS)
	if err != nil {
		return nil, fmt.Errorf("read what was spent: %w", err)
	}
	return scanAll(rows, func(r *sql.Rows) (day Spending, err error) {
		return day, r.Scan(append([]any{&day.DayMS, &day.Model}, spendInto(&day.Spend)...)...)
	})
}
