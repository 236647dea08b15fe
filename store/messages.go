package store

import (
	"context"
	"database/sql"
	"fmt"
)

// Message is one turn of the talk with a model, in the order of Seq within a
// round. It is recorded when it was said, so it may precede its round.
type Message struct {
	RunID     int64
	Round     int
	Seq       int
	Agent     string // "coder" or "judge"
	Role      string // "system", "user", "assistant", "tool"
	Model     string
	Text      string
	TokensIn  int64
	TokensOut int64
	CostUSD   float64
	CreatedMS int64
}

// AppendMessage records a message. CreatedMS is set here where it is 0.
func (s *Store) AppendMessage(ctx context.Context, m Message) error {
	if m.CreatedMS == 0 {
		m.CreatedMS = s.nowMS()
	}
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		text, err := s.putText(ctx, tx, m.Text, m.Text)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO messages (run, idx, seq, agent, role, model, text, tokens_in, tokens_out, cost_usd, created)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			m.RunID, m.Round, m.Seq, m.Agent, m.Role, m.Model, text, m.TokensIn, m.TokensOut, m.CostUSD, m.CreatedMS)
		return err
	})
	if err != nil {
		return fmt.Errorf("record message %d of round %d of run %d: %w", m.Seq, m.Round, m.RunID, err)
	}
	return nil
}

// Messages returns the talk of a run, in order.
func (s *Store) Messages(ctx context.Context, runID int64) ([]Message, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT run, idx, seq, agent, role, model, text, tokens_in, tokens_out, cost_usd, created
		FROM messages WHERE run = ? ORDER BY idx, seq`, runID)
	if err != nil {
		return nil, err
	}
	var texts []int64
	messages, err := scanAll(rows, func(r *sql.Rows) (m Message, err error) {
		var text int64
		err = r.Scan(&m.RunID, &m.Round, &m.Seq, &m.Agent, &m.Role, &m.Model, &text, &m.TokensIn, &m.TokensOut, &m.CostUSD, &m.CreatedMS)
		texts = append(texts, text)
		return m, err
	})
	if err != nil {
		return nil, err
	}
	for i, id := range texts {
		if messages[i].Text, err = s.text(ctx, s.read, id); err != nil {
			return nil, err
		}
	}
	return messages, nil
}
