package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

// EpisodeStatus says where an episode stands.
type EpisodeStatus string

// The statuses. Only EpisodeDone has a reward; of all others nothing is trained on.
const (
	EpisodeOpen    EpisodeStatus = "open"
	EpisodeDone    EpisodeStatus = "done"
	EpisodeDropped EpisodeStatus = "dropped"  // an infrastructure error ended it
	EpisodeExpired EpisodeStatus = "expired"  // nobody continued it
	EpisodeGivenUp EpisodeStatus = "given_up" // its trainer did not want it any more
	EpisodeLost    EpisodeStatus = "lost"     // its process ended
)

// Episode is a run whose Coder is a policy in training.
type Episode struct {
	Run       int64         `json:"id"`
	Policy    string        `json:"policy_version"` // as who trains it calls it
	Rule      string        `json:"reward_rule"`
	Status    EpisodeStatus `json:"status"`
	Reward    *int          `json:"reward"` // -1, 1, 2 or 3
	Reason    string        `json:"reason,omitempty"`
	CreatedMS int64         `json:"created"`
	EndedMS   int64         `json:"ended,omitempty"`
}

// Sample is one call of the policy in an episode.
type Sample struct {
	Index   int    // from 0
	Round   int    // Round and Seq are those of the call's llm.Key
	Seq     int    //
	Context string // "append" or "replace"
	Finish  string // as the sampler said
	Policy  string // the version that sampled it
	Mask    []int  // of the reply's tokens: 1 where it is the policy's; nil: all are
}

// SampleRow is a sample with what it is trained on.
type SampleRow struct {
	Place     int64 // of its episode, in the order in which they were done
	Episode   Episode
	Sample    Sample
	Task      string        // fingerprint
	Messages  []llm.Message // of the prompt
	Text      string        // of the reply
	PromptIDs []int
	TokenIDs  []int
	LogProbs  []float64
}

// WithEpisode makes a new run an episode that is open. Run, Status and CreatedMS
// are set here.
func WithEpisode(e Episode) With {
	return func(ctx context.Context, s *Store, tx *sql.Tx, run int64) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO episodes (run, policy, rule, status, reason, created, ended) VALUES (?, ?, ?, ?, '', ?, 0)`,
			run, e.Policy, e.Rule, EpisodeOpen, s.nowMS())
		if err != nil {
			return fmt.Errorf("record run %d as an episode: %w", run, err)
		}
		return nil
	}
}

// EndEpisode records at once how an episode ended, its run, and the samples of one
// that is done. One that is not open any more stays as it is, which ended says.
func (s *Store) EndEpisode(ctx context.Context, e Episode, r kernelwright.Run, samples []Sample) (ended bool, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		place := sql.NullInt64{Valid: e.Status == EpisodeDone}
		if place.Valid {
			if err := tx.QueryRowContext(ctx, `SELECT coalesce(max(place), 0) + 1 FROM episodes`).Scan(&place.Int64); err != nil {
				return err
			}
		}
		done, err := tx.ExecContext(ctx, `UPDATE episodes SET status = ?, reward = ?, reason = ?, ended = ?, place = ? WHERE run = ? AND status = ?`,
			e.Status, e.Reward, e.Reason, s.nowMS(), place, e.Run, EpisodeOpen)
		if err != nil {
			return err
		}
		n, err := done.RowsAffected()
		if ended = n > 0; err != nil || !ended {
			return err
		}
		if place.Valid {
			if err := s.putSamples(ctx, tx, e.Run, samples); err != nil {
				return err
			}
		}
		return s.updateRun(ctx, tx, r)
	})
	if err != nil {
		return false, fmt.Errorf("record the end of episode %d: %w", e.Run, err)
	}
	return ended, nil
}

func (s *Store) putSamples(ctx context.Context, tx *sql.Tx, run int64, samples []Sample) error {
	for _, m := range samples {
		var mask any
		if m.Mask != nil {
			id, err := s.putJSON(ctx, tx, m.Mask, "")
			if err != nil {
				return err
			}
			mask = id
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO samples (run, idx, round, seq, context, finish, policy, mask) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			run, m.Index, m.Round, m.Seq, m.Context, m.Finish, m.Policy, mask); err != nil {
			return err
		}
	}
	return nil
}

// LoseEpisodes records that every episode that is open, and its run, was lost with
// its process, and returns how many. For who alone has the data folder.
func (s *Store) LoseEpisodes(ctx context.Context) (n int64, err error) {
	const reason = "the process that had it open ended"
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		now := s.nowMS()
		if _, err := tx.ExecContext(ctx, `UPDATE runs SET status = ?, reason = ?, finished = ? WHERE status = ? AND id IN (SELECT run FROM episodes WHERE status = ?)`,
			kernelwright.RunFailed, reason, now, kernelwright.RunRunning, EpisodeOpen); err != nil {
			return err
		}
		done, err := tx.ExecContext(ctx, `UPDATE episodes SET status = ?, reason = ?, ended = ? WHERE status = ?`, EpisodeLost, reason, now, EpisodeOpen)
		if err != nil {
			return err
		}
		n, err = done.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("record the episodes that were lost: %w", err)
	}
	return n, nil
}

const episodeColumns = `run, policy, rule, status, reward, reason, created, ended`

func scanEpisode(scan func(...any) error, more ...any) (e Episode, err error) {
	return e, scan(append([]any{&e.Run, &e.Policy, &e.Rule, &e.Status, &e.Reward, &e.Reason, &e.CreatedMS, &e.EndedMS}, more...)...)
}

// Episode returns the episode that a run is, or ErrNotFound.
func (s *Store) Episode(ctx context.Context, run int64) (Episode, error) {
	e, err := scanEpisode(s.read.QueryRowContext(ctx, `SELECT `+episodeColumns+` FROM episodes WHERE run = ?`, run).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return e, fmt.Errorf("episode %d: %w", run, ErrNotFound)
	}
	return e, err
}

// Sampled is the episodes that one version of a policy has samples in.
type Sampled struct {
	Policy   string
	Episodes int64
	Mean     *float64      // of the rewards; nil: there is none
	Rewards  map[int]int64 // how many episodes have which; those without one are left out
}

// maxVersions bounds what SampledVersions returns.
const maxVersions = 100_000

// SampledVersions returns the versions of policies that samples are of and whose names
// begin so, in the order of their bytes.
func (s *Store) SampledVersions(ctx context.Context, prefix string) ([]string, error) {
	rows, err := s.read.QueryContext(ctx, `WITH RECURSIVE version(p) AS (
		SELECT min(policy) FROM samples WHERE policy >= ?1
		UNION ALL SELECT (SELECT min(policy) FROM samples WHERE policy > p) FROM version WHERE substr(p, 1, length(?1)) = ?1)
		SELECT p FROM version WHERE substr(p, 1, length(?1)) = ?1 LIMIT ?2`, prefix, maxVersions)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (p string, err error) { return p, r.Scan(&p) })
}

// Sampled counts the episodes of a version of a policy.
func (s *Store) Sampled(ctx context.Context, policy string) (Sampled, error) {
	out := Sampled{Policy: policy, Rewards: map[int]int64{}}
	rows, err := s.read.QueryContext(ctx, `SELECT reward, count(*) FROM episodes WHERE run IN (SELECT run FROM samples WHERE policy = ?) GROUP BY reward`, policy)
	if err != nil {
		return out, err
	}
	defer rows.Close()
	var sum, with int64
	for rows.Next() {
		var reward sql.NullInt64
		var n int64
		if err := rows.Scan(&reward, &n); err != nil {
			return out, err
		}
		out.Episodes += n
		if reward.Valid {
			out.Rewards[int(reward.Int64)] += n
			sum, with = sum+reward.Int64*n, with+n
		}
	}
	if with > 0 {
		mean := float64(sum) / float64(with)
		out.Mean = &mean
	}
	return out, rows.Err()
}

// SamplesOf gives the samples of the episodes of a version of a policy, as Samples does,
// those with the highest rewards first. After is how many episodes are passed over.
func (s *Store) SamplesOf(ctx context.Context, policy string, after, episodes int, give func(SampleRow) error) error {
	rows, err := s.read.QueryContext(ctx, `SELECT `+episodeColumns+`, coalesce(place, 0) FROM episodes
		WHERE run IN (SELECT run FROM samples WHERE policy = ?) ORDER BY coalesce(reward, -9) DESC, run LIMIT ? OFFSET ?`, policy, episodes, after)
	if err != nil {
		return err
	}
	return s.giveSamples(ctx, rows, give)
}

// Samples gives the samples of episodes that were done after the place, each
// episode's in the order of its calls, until so many episodes were given or give
// returns an error.
func (s *Store) Samples(ctx context.Context, after int64, episodes int, give func(SampleRow) error) error {
	rows, err := s.read.QueryContext(ctx, `SELECT `+episodeColumns+`, place FROM episodes WHERE place > ? ORDER BY place LIMIT ?`, after, episodes)
	if err != nil {
		return err
	}
	return s.giveSamples(ctx, rows, give)
}

func (s *Store) giveSamples(ctx context.Context, rows *sql.Rows, give func(SampleRow) error) error {
	type placed struct {
		Episode
		place int64
	}
	found, err := scanAll(rows, func(r *sql.Rows) (p placed, err error) {
		p.Episode, err = scanEpisode(r.Scan, &p.place)
		return p, err
	})
	if err != nil {
		return err
	}
	for _, e := range found {
		if err := s.samplesOf(ctx, e.Episode, e.place, give); err != nil {
			return fmt.Errorf("samples of episode %d: %w", e.Run, err)
		}
	}
	return nil
}

// sampleRow is a sample before its texts were read.
type sampleRow struct {
	sample Sample
	task   string
	mask   sql.NullInt64
}

func (s *Store) samplesOf(ctx context.Context, e Episode, place int64, give func(SampleRow) error) error {
	rows, err := s.read.QueryContext(ctx, `SELECT idx, round, seq, context, finish, samples.policy, mask, task FROM samples JOIN runs ON runs.id = run WHERE run = ? ORDER BY idx`, e.Run)
	if err != nil {
		return err
	}
	found, err := scanAll(rows, func(r *sql.Rows) (row sampleRow, err error) {
		m := &row.sample
		return row, r.Scan(&m.Index, &m.Round, &m.Seq, &m.Context, &m.Finish, &m.Policy, &row.mask, &row.task)
	})
	if err != nil {
		return err
	}
	for _, row := range found {
		calls, err := s.calls(ctx, `WHERE run = ? AND round = ? AND agent = 'coder' AND seq = ? ORDER BY take DESC LIMIT 1`, e.Run, row.sample.Round, row.sample.Seq)
		if err != nil {
			return err
		}
		if len(calls) == 0 {
			return &DamagedError{Path: s.path, Err: fmt.Errorf("call %d of episode %d is not there", row.sample.Index, e.Run)}
		}
		if row.mask.Valid {
			text, err := s.text(ctx, s.read, row.mask.Int64)
			if err == nil {
				err = json.Unmarshal([]byte(text), &row.sample.Mask)
			}
			if err != nil {
				return err
			}
		}
		c := calls[0]
		if err := give(SampleRow{place, e, row.sample, row.task, c.Request.Messages, c.Reply.Text, c.Reply.PromptIDs, c.Reply.TokenIDs, c.Reply.LogProbs}); err != nil {
			return err
		}
	}
	return nil
}
