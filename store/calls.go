package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright/llm"
)

// Append records a call that a model answered: llm.Journal. What its messages
// share with an earlier call's is not kept twice. The same record again does
// nothing; another one under its key is kept beside it.
func (s *Store) Append(ctx context.Context, r llm.Record) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error { return s.appendCall(ctx, tx, r) })
	if err != nil {
		return fmt.Errorf("record call %d of the %s in round %d of run %d: %w", r.Key.Seq, r.Key.Agent, r.Key.Round, r.Key.Run, err)
	}
	return nil
}

func (s *Store) appendCall(ctx context.Context, tx *sql.Tx, r llm.Record) error {
	digest := r.Request.Digest(r.Model)
	c, err := s.putReply(ctx, tx, r)
	if err != nil {
		return err
	}
	k, take := r.Key, 0
	if k.Run != 0 {
		var same int
		err := tx.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(digest = ?1 AND text = ?2 AND reply IS ?3 AND began = ?4), 0) FROM calls
			WHERE run = ?5 AND round = ?6 AND agent = ?7 AND seq = ?8`, digest[:], c.text, c.reply, r.BeganMS, k.Run, k.Round, k.Agent, k.Seq).Scan(&take, &same)
		if err != nil || same > 0 {
			return err
		}
	}
	turn, err := s.putTurns(ctx, tx, k, r.Request.Messages)
	if err != nil {
		return err
	}
	rest := r.Request
	rest.Messages = nil
	request, err := s.putOptional(ctx, tx, rest, llm.Request{}, "")
	if err != nil {
		return err
	}
	tokens, follows, err := s.putTokens(ctx, tx, k, r.Reply)
	if err != nil {
		return err
	}
	u := r.Reply.Usage
	_, err = tx.ExecContext(ctx, `INSERT INTO calls (run, round, agent, seq, take, digest, model, turn, request, text, reasoning, reply, tokens, follows, stop,
		tokens_in, tokens_out, cached, written, thought, estimated, cost_usd, began, took)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		ofRun(k), k.Round, k.Agent, k.Seq, take, digest[:], r.Model, turn, request, c.text, c.reasoning, c.reply, tokens, follows, r.Reply.Stop,
		u.In, u.Out, u.CachedIn, u.CacheWrite, u.Reasoning, u.Estimated, r.CostUSD, r.BeganMS, r.TookMS)
	return err
}

// ofRun is a key's run as a column has it: null for none.
func ofRun(k llm.Key) sql.NullInt64 { return sql.NullInt64{Int64: k.Run, Valid: k.Run != 0} }

// replyRest is what of a reply has no column.
func replyRest(r llm.Reply) llm.Reply {
	r.Text, r.Reasoning, r.Stop, r.Usage = "", "", "", llm.Usage{}
	r.PromptIDs, r.TokenIDs, r.LogProbs = nil, nil, nil
	return r
}

// messageRest is what of a message has no column.
func messageRest(m llm.Message) llm.Message {
	m.Role, m.Text = "", ""
	return m
}

// replyTexts are the texts of a reply.
type replyTexts struct {
	text             int64
	reasoning, reply any
}

func (s *Store) putReply(ctx context.Context, tx *sql.Tx, r llm.Record) (c replyTexts, err error) {
	if c.text, err = s.putText(ctx, tx, r.Reply.Text, r.Reply.Text); err != nil {
		return c, err
	}
	if r.Reply.Reasoning != "" {
		if c.reasoning, err = s.putText(ctx, tx, r.Reply.Reasoning, r.Reply.Reasoning); err != nil {
			return c, err
		}
	}
	c.reply, err = s.putOptional(ctx, tx, replyRest(r.Reply), llm.Reply{}, callWords(r.Reply.ToolCalls))
	return c, err
}

// callWords is what a reply's tool calls are found by: their arguments are JSON,
// whose escapes are not words.
func callWords(calls []llm.ToolCall) string {
	var words []string
	for _, c := range calls {
		words = append(words, c.Name, unescape.Replace(c.Arguments))
	}
	return strings.Join(words, "\n")
}

var unescape = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t", `\r`, "\r", `\"`, `"`)

// putOptional records v's JSON, for a column that is null where v is nothing.
func (s *Store) putOptional(ctx context.Context, tx *sql.Tx, v, nothing any, index string) (any, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	none, err := json.Marshal(nothing)
	if err != nil {
		return nil, err
	}
	if string(b) == string(none) {
		return nil, nil
	}
	return s.putText(ctx, tx, string(b), index)
}

// putTurns records a talk and returns its last turn. Most of it is there
// already where it goes on from an earlier one: it is looked for from its end.
func (s *Store) putTurns(ctx context.Context, tx *sql.Tx, k llm.Key, talk []llm.Message) (any, error) {
	hashes := make([][sha256.Size]byte, len(talk))
	for i, m := range talk {
		rest, err := json.Marshal(messageRest(m))
		if err != nil {
			return nil, err
		}
		h := sha256.New()
		if i > 0 {
			h.Write(hashes[i-1][:])
		}
		text := sha256.Sum256([]byte(m.Text))
		fmt.Fprintf(h, "%q%x%s", m.Role, text, rest)
		h.Sum(hashes[i][:0])
	}
	var last any
	known := len(talk)
	for ; known > 0; known-- {
		var id int64
		err := tx.QueryRowContext(ctx, `SELECT id FROM turns WHERE hash = ?`, hashes[known-1][:]).Scan(&id)
		if err == nil {
			last = id
			break
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return nil, err
		}
	}
	for i := known; i < len(talk); i++ {
		m := talk[i]
		text, err := s.putText(ctx, tx, m.Text, m.Text)
		if err != nil {
			return nil, err
		}
		detail, err := s.putOptional(ctx, tx, messageRest(m), llm.Message{}, "")
		if err != nil {
			return nil, err
		}
		var id int64
		err = tx.QueryRowContext(ctx, `INSERT INTO turns (hash, before, role, text, detail, run, round) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id`,
			hashes[i][:], last, m.Role, text, detail, ofRun(k), k.Round).Scan(&id)
		if err != nil {
			return nil, err
		}
		last = id
	}
	return last, nil
}

// tokens is what a call tells of its tokens: those of the prompt but for the
// first Shared, which the call before it has too.
type tokens struct {
	Shared   int       `json:"shared,omitempty"`
	Prompt   []int     `json:"prompt,omitempty"`
	Reply    []int     `json:"reply,omitempty"`
	LogProbs []float64 `json:"log_probs,omitempty"`
}

// putTokens records a call's tokens, in a row of calls where a prompt begins
// with the last one's and its reply.
func (s *Store) putTokens(ctx context.Context, tx *sql.Tx, k llm.Key, r llm.Reply) (id, follows any, err error) {
	if len(r.PromptIDs)+len(r.TokenIDs)+len(r.LogProbs) == 0 {
		return nil, nil, nil
	}
	t := tokens{Prompt: r.PromptIDs, Reply: r.TokenIDs, LogProbs: r.LogProbs}
	var before int64
	err = tx.QueryRowContext(ctx, `SELECT id FROM calls WHERE run = ? AND agent = ? AND tokens IS NOT NULL ORDER BY id DESC LIMIT 1`, k.Run, k.Agent).Scan(&before)
	if err == nil && len(r.PromptIDs) > 0 {
		b, err := s.tokens(ctx, tx, before)
		if err != nil {
			return nil, nil, err
		}
		all := slices.Concat(b.Prompt, b.Reply)
		for t.Shared < min(len(all), len(r.PromptIDs)) && all[t.Shared] == r.PromptIDs[t.Shared] {
			t.Shared++
		}
		if t.Shared > 0 {
			t.Prompt, follows = r.PromptIDs[t.Shared:], before
		}
	} else if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, nil, err
	}
	id, err = s.putJSON(ctx, tx, t, "")
	return id, follows, err
}

// tokens returns a call's tokens, with all of its prompt's.
func (s *Store) tokens(ctx context.Context, q querier, call int64) (tokens, error) {
	var chain []tokens // the last first
	for id := (sql.NullInt64{Int64: call, Valid: true}); id.Valid; {
		var text, follows sql.NullInt64
		if err := q.QueryRowContext(ctx, `SELECT tokens, follows FROM calls WHERE id = ?`, id.Int64).Scan(&text, &follows); err != nil {
			return tokens{}, err
		}
		if !text.Valid && len(chain) == 0 {
			return tokens{}, nil
		}
		if !text.Valid || follows.Valid && follows.Int64 >= id.Int64 {
			return tokens{}, s.damagedCall(call, "what its tokens follow is not there")
		}
		var t tokens
		if err := s.textJSON(ctx, q, text.Int64, &t); err != nil {
			return t, err
		}
		chain, id = append(chain, t), follows
	}
	var all tokens
	for i := len(chain) - 1; i >= 0; i-- {
		t := chain[i]
		before := slices.Concat(all.Prompt, all.Reply)
		if t.Shared > len(before) {
			return t, s.damagedCall(call, "its tokens share more than there is")
		}
		t.Prompt, t.Shared = append(before[:t.Shared:t.Shared], t.Prompt...), 0
		all = t
	}
	return all, nil
}

func (s *Store) damagedCall(id int64, what string) error {
	return &DamagedError{Path: s.path, Err: fmt.Errorf("call %d: %s", id, what)}
}

// Recall returns the first record under the key whose request has the digest, one
// with a reply before one that was too long: llm.Journal.
func (s *Store) Recall(ctx context.Context, k llm.Key, digest [sha256.Size]byte) (llm.Record, bool, error) {
	if k.Run == 0 {
		return llm.Record{}, false, nil
	}
	found, err := s.calls(ctx, `WHERE run = ? AND round = ? AND agent = ? AND seq = ? AND digest = ? AND text IS NOT NULL ORDER BY stop = ?, take LIMIT 1`,
		k.Run, k.Round, k.Agent, k.Seq, digest[:], llm.StopTooLong)
	if err != nil || len(found) == 0 {
		return llm.Record{}, false, err
	}
	return found[0], true, nil
}

// Known reports whether any record is under the key: llm.Journal.
func (s *Store) Known(ctx context.Context, k llm.Key) (bool, error) {
	var known bool
	err := s.read.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM calls WHERE run = ? AND round = ? AND agent = ? AND seq = ?)`, k.Run, k.Round, k.Agent, k.Seq).Scan(&known)
	return known, err
}

// LastFit returns what a model's last call under the key was fitted to, of those that were
// answered before those that were too long, and how it ended: llm.Journal.
func (s *Store) LastFit(ctx context.Context, k llm.Key, model string) (*llm.Fit, llm.Stop, error) {
	var request sql.NullInt64
	var stop llm.Stop
	err := s.read.QueryRowContext(ctx, `SELECT request, stop FROM calls WHERE run = ? AND round = ? AND agent = ? AND seq = ? AND model = ? AND text IS NOT NULL
		ORDER BY stop = ?, take DESC LIMIT 1`, k.Run, k.Round, k.Agent, k.Seq, model, llm.StopTooLong).Scan(&request, &stop)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, "", nil
	}
	if err != nil || !request.Valid {
		return nil, stop, err
	}
	var asked llm.Request
	if err := s.textJSON(ctx, s.read, request.Int64, &asked); err != nil {
		return nil, "", err
	}
	return asked.Fit, stop, nil
}

// Calls returns what models were asked in a run and what they answered, in the
// order in which it happened. What a salvage could not bring over is empty.
func (s *Store) Calls(ctx context.Context, runID int64) ([]llm.Record, error) {
	return s.calls(ctx, `WHERE run = ? ORDER BY id`, runID)
}

// callRow is a call before its texts were read.
type callRow struct {
	id, run                                      sql.NullInt64
	turn, request, text, reasoning, rest, tokens sql.NullInt64
	record                                       llm.Record
}

func (s *Store) calls(ctx context.Context, where string, args ...any) ([]llm.Record, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT id, run, round, agent, seq, model, turn, request, text, reasoning, reply, tokens, stop,
		tokens_in, tokens_out, cached, written, thought, estimated, cost_usd, began, took FROM calls `+where, args...)
	if err != nil {
		return nil, err
	}
	found, err := scanAll(rows, func(r *sql.Rows) (c callRow, err error) {
		k, reply := &c.record.Key, &c.record.Reply
		u := &reply.Usage
		err = r.Scan(&c.id, &c.run, &k.Round, &k.Agent, &k.Seq, &c.record.Model, &c.turn, &c.request, &c.text, &c.reasoning, &c.rest, &c.tokens, &reply.Stop,
			&u.In, &u.Out, &u.CachedIn, &u.CacheWrite, &u.Reasoning, &u.Estimated, &c.record.CostUSD, &c.record.BeganMS, &c.record.TookMS)
		k.Run = c.run.Int64
		return c, err
	})
	if err != nil {
		return nil, err
	}
	records := make([]llm.Record, len(found))
	said := map[int64]turn{}
	for i, c := range found {
		if records[i], err = s.fillCall(ctx, c, said); err != nil {
			return nil, err
		}
	}
	return records, nil
}

func (s *Store) fillCall(ctx context.Context, c callRow, said map[int64]turn) (llm.Record, error) {
	r := c.record
	if c.request.Valid {
		if err := s.textJSON(ctx, s.read, c.request.Int64, &r.Request); err != nil {
			return r, err
		}
	}
	r.Request.Key = r.Key
	var err error
	if c.rest.Valid {
		var rest llm.Reply
		if err := s.textJSON(ctx, s.read, c.rest.Int64, &rest); err != nil {
			return r, err
		}
		rest.Stop, rest.Usage = r.Reply.Stop, r.Reply.Usage
		r.Reply = rest
	}
	if r.Request.Messages, err = s.talk(ctx, c.turn, said); err != nil {
		return r, err
	}
	if r.Reply.Text, err = s.optionalText(ctx, s.read, c.text); err != nil {
		return r, err
	}
	if r.Reply.Reasoning, err = s.optionalText(ctx, s.read, c.reasoning); err != nil {
		return r, err
	}
	if c.tokens.Valid {
		t, err := s.tokens(ctx, s.read, c.id.Int64)
		if err != nil {
			return r, err
		}
		r.Reply.PromptIDs, r.Reply.TokenIDs, r.Reply.LogProbs = t.Prompt, t.Reply, t.LogProbs
	}
	return r, nil
}

// turn is one message and the turn before it.
type turn struct {
	before  sql.NullInt64
	message llm.Message
}

// talk returns the messages up to and with a turn. Said is what was read
// before, and has what was read now.
func (s *Store) talk(ctx context.Context, last sql.NullInt64, said map[int64]turn) ([]llm.Message, error) {
	var ids []int64 // the last first
	for id := last; id.Valid; {
		t, known := said[id.Int64]
		if !known {
			var err error
			if t, err = s.turn(ctx, id.Int64); err != nil {
				return nil, err
			}
			said[id.Int64] = t
		}
		ids, id = append(ids, id.Int64), t.before
	}
	if len(ids) == 0 {
		return nil, nil
	}
	messages := make([]llm.Message, len(ids))
	for i, id := range ids {
		messages[len(ids)-1-i] = said[id].message
	}
	return messages, nil
}

func (s *Store) turn(ctx context.Context, id int64) (turn, error) {
	var t turn
	var text int64
	var detail sql.NullInt64
	err := s.read.QueryRowContext(ctx, `SELECT before, role, text, detail FROM turns WHERE id = ?`, id).Scan(&t.before, &t.message.Role, &text, &detail)
	if err != nil {
		return t, fmt.Errorf("read turn %d of a talk: %w", id, err)
	}
	if t.before.Valid && t.before.Int64 >= id {
		return t, &DamagedError{Path: s.path, Err: fmt.Errorf("turn %d of a talk goes on from a later one", id)}
	}
	if detail.Valid {
		var rest llm.Message
		if err := s.textJSON(ctx, s.read, detail.Int64, &rest); err != nil {
			return t, err
		}
		rest.Role = t.message.Role
		t.message = rest
	}
	t.message.Text, err = s.text(ctx, s.read, text)
	return t, err
}
