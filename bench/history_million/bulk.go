package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

// drawn is a run to record. Certificates are in their rounds.
type drawn struct {
	run    kernelwright.Run
	rounds []kernelwright.Round
}

// text is a row of texts, and what the search index is told of it.
type text struct {
	hash  [32]byte
	size  int
	body  []byte
	index string
}

// verdict is a verdict's row with its texts.
type verdict struct {
	v        kernelwright.Verdict
	text     text
	exported *text
}

// prepared is a round of which only the numbers of its rows are missing.
type prepared struct {
	round       kernelwright.Round
	digest      [32]byte
	candidate   text
	verdict     verdict
	feedback    *text
	certificate *verdict
}

type preparedRun struct {
	run    kernelwright.Run
	rounds []prepared
}

// writer records runs as the store does, many to a transaction and without
// looking for what was recorded before: a million rounds one by one would take
// an hour. `history check` is the judge of whether it did so rightly.
type writer struct {
	db      *sql.DB
	runs    int64            // recorded
	texts   int64            // the last one's number
	verdict int64            // likewise
	devices map[string]int64 // texts of their details, by key
	names   map[string]int64
	tasks   map[string][3]int64
	enc     *zstd.Encoder
}

// perCommit is how many runs are recorded in one transaction.
const perCommit = 500

func newWriter(ctx context.Context, path string) (*writer, error) {
	pragmas := "_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_pragma=cache_size(-1000000)&_pragma=busy_timeout(10000)&_txlock=immediate"
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: pragmas}).String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	digests, err := store.DigestTriggers(ctx, db)
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, digests); err != nil {
		return nil, err
	}
	w := &writer{db: db, names: map[string]int64{}, tasks: map[string][3]int64{}, devices: map[string]int64{}}
	err = db.QueryRowContext(ctx, `SELECT (SELECT coalesce(max(id), 0) FROM runs), (SELECT coalesce(max(id), 0) FROM texts),
		(SELECT coalesce(max(id), 0) FROM verdicts)`).Scan(&w.runs, &w.texts, &w.verdict)
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, `SELECT fingerprint, source, graph, detail FROM tasks`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var fingerprint string
		var ids [3]int64
		if err := rows.Scan(&fingerprint, &ids[0], &ids[1], &ids[2]); err != nil {
			return nil, err
		}
		w.tasks[fingerprint] = ids
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	known, err := db.QueryContext(ctx, `SELECT key, detail FROM devices`)
	if err != nil {
		return nil, err
	}
	defer known.Close()
	for known.Next() {
		var key string
		var detail int64
		if err := known.Scan(&key, &detail); err != nil {
			return nil, err
		}
		w.devices[key] = detail
	}
	if err := known.Err(); err != nil {
		return nil, err
	}
	w.enc, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(2))
	return w, err
}

// write records the runs first+1 to last, made by several goroutines at once.
func (w *writer) write(ctx context.Context, first, last int64, draw func(int64) (drawn, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	type made struct {
		run preparedRun
		err error
	}
	queue := make(chan chan made, 64) // in order
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		defer close(queue)
		for id := first + 1; id <= last; id++ {
			slot := make(chan made, 1)
			select {
			case queue <- slot:
			case <-ctx.Done():
				return
			}
			wg.Go(func() {
				d, err := draw(id)
				if err != nil {
					slot <- made{err: err}
					return
				}
				run, err := w.prepare(d)
				slot <- made{run, err}
			})
		}
	})
	began := time.Now()
	for w.runs < last {
		if err := ctx.Err(); err != nil {
			return err
		}
		tx, err := w.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		n := min(perCommit, last-w.runs)
		if err := w.batch(ctx, tx, n, func() (preparedRun, error) {
			slot, ok := <-queue
			if !ok {
				return preparedRun{}, context.Cause(ctx)
			}
			m := <-slot
			return m.run, m.err
		}); err != nil {
			_ = tx.Rollback() // the error before it is the one to tell
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		w.runs += n
		fmt.Fprintf(os.Stderr, "\r%d of %d runs, %v ", w.runs, last, time.Since(began).Round(time.Second))
	}
	fmt.Fprintln(os.Stderr)
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := store.SumCharges(ctx, tx); err != nil {
		_ = tx.Rollback() // the error before it is the one to tell
		return err
	}
	return tx.Commit()
}

func (w *writer) prepare(d drawn) (preparedRun, error) {
	p := preparedRun{run: d.run}
	for _, r := range d.rounds {
		var q prepared
		certificate := r.Certificate
		r.Certificate = nil
		whole, err := json.Marshal(r)
		if err != nil {
			return p, err
		}
		q.round, q.digest = r, sha256.Sum256(whole)
		q.candidate = w.text(r.Candidate.Source, r.Candidate.Note+"\n"+r.Candidate.Source)
		if q.verdict, err = w.prepareVerdict(r.Verdict); err != nil {
			return p, err
		}
		if f := r.Feedback; f != nil {
			b, err := json.Marshal(f)
			if err != nil {
				return p, err
			}
			t := w.text(string(b), strings.Join([]string{f.Issue, f.Why, f.Fix, f.Bottleneck, f.Method, f.Plan}, "\n"))
			q.feedback = &t
		}
		if certificate != nil {
			c, err := w.prepareVerdict(*certificate)
			if err != nil {
				return p, err
			}
			q.certificate = &c
		}
		p.rounds = append(p.rounds, q)
	}
	return p, nil
}

func (w *writer) prepareVerdict(v kernelwright.Verdict) (verdict, error) {
	var out verdict
	if v.Exported != "" {
		t := w.text(v.Exported, "")
		out.exported, v.Exported = &t, ""
	}
	index := append([]string{string(v.Status), v.Reason, v.Hint, v.Output}, v.Evidence...)
	for _, d := range v.Build.Errors {
		index = append(index, d.Message)
	}
	b, err := json.Marshal(v)
	out.v, out.text = v, w.text(string(b), strings.Join(index, "\n"))
	return out, err
}

func (w *writer) text(s, index string) text {
	return text{sha256.Sum256([]byte(s)), len(s), w.enc.EncodeAll([]byte(s), nil), index}
}

// statements are what a batch runs again and again.
var statements = map[string]string{
	"text":  `INSERT INTO texts (id, hash, size, indexed, body) VALUES (?, ?, ?, ?, ?)`,
	"fts":   `INSERT INTO texts_fts (rowid, body) VALUES (?, ?)`,
	"words": store.WordsQuery,
	"run": `INSERT INTO runs (id, task, task_name, path, device, device_key, strategy, coder, judge, seed, max_rounds, settings, status, stop, reason, hint,
		created, started, finished, best, task_source, task_graph, task_detail, device_detail)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
	"verdict": `INSERT INTO verdicts (id, text, exported, status, reason, level, candidate_ms, speedup, speedup_low, speedup_high, against, headroom)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
	"round": `INSERT INTO rounds (run, idx, task, device_key, standing, ms, candidate, language, origin, note, verdict, started, finished, overhead_ms, digest)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
	"feedback":    `INSERT INTO feedback (run, idx, kind, rule, text) VALUES (?, ?, ?, ?, ?)`,
	"certificate": `INSERT INTO certificates (run, idx, verdict, sha256, created) VALUES (?, ?, ?, ?, ?)`,
	"lessons":     store.LearnQuery,
	"facets":      store.FacetQueries[0],
	"run_facets":  store.FacetQueries[1],
	"metric":      `INSERT INTO metrics (run, idx, name, value) VALUES (?, ?, ?, ?)`,
	"charge": `INSERT INTO charges (run, round, agent, seq, model, tokens_in, tokens_out, cached, written, thought, estimated, cost_usd, ended, took, failed)
		VALUES (?, ?, ?, 0, ?, ?, ?, 0, 0, 0, 0, ?, ?, ?, '')`,
}

// batch is one transaction.
type batch struct {
	ctx  context.Context
	tx   *sql.Tx
	stmt map[string]*sql.Stmt
	w    *writer
	// index is what the search index is told at the end: between other statements it
	// would be written out at each.
	index *[]indexed
}

type indexed struct {
	id   int64
	text string
}

func (w *writer) batch(ctx context.Context, tx *sql.Tx, n int64, next func() (preparedRun, error)) error {
	b := batch{ctx, tx, map[string]*sql.Stmt{}, w, &[]indexed{}}
	for name, query := range statements {
		stmt, err := tx.PrepareContext(ctx, query)
		if err != nil {
			return err
		}
		defer func() { _ = stmt.Close() }() // the transaction ends it too
		b.stmt[name] = stmt
	}
	for range n {
		p, err := next()
		if err == nil {
			err = b.run(p)
		}
		if err != nil {
			return err
		}
	}
	for _, x := range *b.index {
		if err := errors.Join(b.exec("fts", x.id, x.text), b.exec("words", store.NewWords(x.text))); err != nil {
			return err
		}
	}
	return nil
}

func (b batch) exec(name string, args ...any) error {
	_, err := b.stmt[name].ExecContext(b.ctx, args...)
	return err
}

func (b batch) text(t text) (int64, error) {
	b.w.texts++
	id := b.w.texts
	if err := b.exec("text", id, t.hash[:], t.size, t.index != "", t.body); err != nil {
		return 0, err
	}
	if t.index != "" {
		*b.index = append(*b.index, indexed{id, t.index})
	}
	return id, nil
}

func (b batch) verdict(v verdict) (int64, error) {
	var exported any
	if v.exported != nil {
		id, err := b.text(*v.exported)
		if err != nil {
			return 0, err
		}
		exported = id
	}
	id, err := b.text(v.text)
	if err != nil {
		return 0, err
	}
	var value, low, high any
	against := ""
	if s := v.v.Speedup; s != nil {
		value, low, high, against = s.Value, s.Low, s.High, s.Against
	}
	b.w.verdict++
	return b.w.verdict, b.exec("verdict", b.w.verdict, id, exported, string(v.v.Status), v.v.Reason, string(v.v.Level), v.v.CandidateMS,
		value, low, high, against, v.v.Headroom)
}

func (b batch) metric(name string) (int64, error) {
	if id, ok := b.w.names[name]; ok {
		return id, nil
	}
	if _, err := b.tx.ExecContext(b.ctx, `INSERT INTO metric_names (name) VALUES (?) ON CONFLICT (name) DO NOTHING`, name); err != nil {
		return 0, err
	}
	var id int64
	err := b.tx.QueryRowContext(b.ctx, `SELECT id FROM metric_names WHERE name = ?`, name).Scan(&id)
	b.w.names[name] = id
	return id, err
}

func (b batch) run(p preparedRun) error {
	r := p.run
	var best any
	for _, q := range p.rounds {
		if q.certificate != nil {
			best = q.round.Index
		}
	}
	task := b.w.tasks[r.Task]
	if err := b.exec("run", r.ID, r.Task, r.TaskName, r.Path, r.Device, r.DeviceKey, r.Strategy, r.Coder, r.Judge, r.Seed, r.MaxRounds, r.Settings,
		string(r.Status), string(r.Stop), r.Reason, r.Hint, r.CreatedMS, r.StartedMS, r.FinishedMS, best, task[0], task[1], task[2], b.w.devices[r.DeviceKey]); err != nil {
		return err
	}
	for _, q := range p.rounds {
		if err := b.round(r, q); err != nil {
			return fmt.Errorf("round %d of run %d: %w", q.round.Index, r.ID, err)
		}
		if r.Coder == coders[0] {
			continue
		}
		for i, agent := range []string{"coder", "judge"} { // what its models were asked
			if err := b.exec("charge", r.ID, q.round.Index, agent, r.Coder, 3000+q.round.Index*500, 900-300*i, float64(r.ID%97)/1000, q.round.StartedMS+int64(i)*2000, 1500); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"lessons", "facets", "run_facets"} {
		if err := b.exec(name, r.ID); err != nil {
			return err
		}
	}
	return nil
}

func (b batch) round(run kernelwright.Run, q prepared) error {
	r := q.round
	candidate, err := b.text(q.candidate)
	if err != nil {
		return err
	}
	verdict, err := b.verdict(q.verdict)
	if err != nil {
		return err
	}
	standing, ms := 0, r.Verdict.CandidateMS
	switch {
	case q.certificate != nil:
		standing, ms = 2, q.certificate.v.CandidateMS
	case r.Verdict.Status.OK():
		standing = 1
	}
	if err := b.exec("round", r.RunID, r.Index, run.Task, run.DeviceKey, standing, ms, candidate, string(r.Candidate.Language), r.Candidate.Origin,
		r.Candidate.Note, verdict, r.StartedMS, r.FinishedMS, r.OverheadMS, q.digest[:]); err != nil {
		return err
	}
	if q.feedback != nil {
		id, err := b.text(*q.feedback)
		if err != nil {
			return err
		}
		if err := b.exec("feedback", r.RunID, r.Index, string(r.Feedback.Kind), r.Feedback.Rule, id); err != nil {
			return err
		}
	}
	for name, value := range r.Verdict.Metrics {
		id, err := b.metric(name)
		if err != nil {
			return err
		}
		if err := b.exec("metric", r.RunID, r.Index, id, value); err != nil {
			return err
		}
	}
	if q.certificate == nil {
		return nil
	}
	id, err := b.verdict(*q.certificate)
	if err != nil {
		return err
	}
	return b.exec("certificate", r.RunID, r.Index, id, q.certificate.v.ExportedSHA256, r.FinishedMS)
}
