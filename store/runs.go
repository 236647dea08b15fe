package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// With is recorded together with a new run, all or nothing.
type With func(ctx context.Context, s *Store, tx *sql.Tx, run int64) error

// WithReference keeps the text that a run is about, so that it does not depend
// on a file that may change before its turn.
func WithReference(source string) With {
	return func(ctx context.Context, s *Store, tx *sql.Tx, run int64) error {
		return s.put(ctx, tx, kindReference, strconv.FormatInt(run, 10), []byte(source))
	}
}

// WithFile records what the path holds that the run is for.
func WithFile(f File) With {
	return func(ctx context.Context, s *Store, tx *sql.Tx, run int64) error {
		f.RunID = run
		return s.saveFile(ctx, tx, f)
	}
}

// WithOwed notes that the run's results are still to be written for a path.
func WithOwed(path string) With {
	return func(ctx context.Context, s *Store, tx *sql.Tx, run int64) error {
		return s.put(ctx, tx, kindOwed, path, strconv.AppendInt(nil, run, 10))
	}
}

const kindReference = "reference" // of the cache

// Reference returns what WithReference kept, and whether anything was.
func (s *Store) Reference(ctx context.Context, run int64) (string, bool, error) {
	text, ok, err := s.Get(ctx, kindReference, strconv.FormatInt(run, 10))
	return string(text), ok, err
}

// CreateRun records a new run and returns it with its ID. CreatedMS is set
// here where it is 0, and the status is queued where it is empty.
func (s *Store) CreateRun(ctx context.Context, r kernelwright.Run, with ...With) (kernelwright.Run, error) {
	err := s.inTx(ctx, func(tx *sql.Tx) (err error) {
		r, err = s.createRun(ctx, tx, r, with)
		return err
	})
	return r, err
}

func (s *Store) createRun(ctx context.Context, tx *sql.Tx, r kernelwright.Run, with []With) (kernelwright.Run, error) {
	if r.CreatedMS == 0 {
		r.CreatedMS = s.nowMS()
	}
	if r.Status == "" {
		r.Status = kernelwright.RunQueued
	}
	r.Best = nil
	detail, err := s.runDetail(ctx, tx, r)
	if err != nil {
		return r, err
	}
	err = tx.QueryRowContext(ctx, `INSERT INTO runs (task, task_name, path, device, device_key, strategy, coder, judge, seed,
		max_rounds, settings, status, stop, reason, hint, detail, created, started, finished)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id`,
		r.Task, r.TaskName, r.Path, r.Device, r.DeviceKey, r.Strategy, r.Coder, r.Judge, r.Seed,
		r.MaxRounds, r.Settings, r.Status, r.Stop, r.Reason, r.Hint, detail, r.CreatedMS, r.StartedMS, r.FinishedMS).Scan(&r.ID)
	if err != nil {
		return r, fmt.Errorf("record a run: %w", err)
	}
	for _, w := range with {
		if err := w(ctx, s, tx, r.ID); err != nil {
			return r, err
		}
	}
	return r, s.pin(ctx, tx, r.ID)
}

// UpdateRun records how a run stands now. Which round is its best follows from
// its rounds, so Best is ignored. Once a run has rounds, its task and device
// no longer change.
func (s *Store) UpdateRun(ctx context.Context, r kernelwright.Run) error {
	return s.inTx(ctx, func(tx *sql.Tx) error { return s.updateRun(ctx, tx, r) })
}

// Describe records what a run is about before its first round: its task, its
// device, the lessons that it goes by (nil: those that it has), and the
// run that names them, at once. So another process that works
// on the same task by another file leaves each run its own.
func (s *Store) Describe(ctx context.Context, r kernelwright.Run, t kernelwright.Task, d kernelwright.Device, lessons []kernelwright.Lesson) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		if err := s.saveTask(ctx, tx, t); err != nil {
			return err
		}
		if err := s.saveDevice(ctx, tx, d); err != nil {
			return err
		}
		// What it worked from before, if anything, was another description.
		if _, err := tx.ExecContext(ctx, `UPDATE runs SET task_source = NULL WHERE id = ? AND NOT EXISTS (SELECT 1 FROM rounds WHERE run = id)`, r.ID); err != nil {
			return err
		}
		if lessons != nil {
			if err := s.pinLessons(ctx, tx, r.ID, lessons); err != nil {
				return err
			}
		}
		return s.updateRun(ctx, tx, r)
	})
}

func (s *Store) updateRun(ctx context.Context, tx *sql.Tx, r kernelwright.Run) error {
	var task, key string
	var rounds int
	var pinned bool
	err := tx.QueryRowContext(ctx, `SELECT task, device_key, (SELECT count(*) FROM rounds WHERE run = id), task_source IS NOT NULL AND device_detail IS NOT NULL
		FROM runs WHERE id = ?`, r.ID).Scan(&task, &key, &rounds, &pinned)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("run %d: %w", r.ID, ErrNotFound)
	}
	if err != nil {
		return err
	}
	moved := task != r.Task || key != r.DeviceKey
	if moved && rounds > 0 {
		return fmt.Errorf("run %d has rounds: its task and device cannot change", r.ID)
	}
	detail, err := s.runDetail(ctx, tx, r)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE runs SET task = ?, task_name = ?, path = ?, device = ?, device_key = ?, strategy = ?, coder = ?,
		judge = ?, seed = ?, max_rounds = ?, settings = ?, status = ?, stop = ?, reason = ?, hint = ?, detail = ?, created = ?, started = ?,
		finished = ? WHERE id = ?`,
		r.Task, r.TaskName, r.Path, r.Device, r.DeviceKey, r.Strategy, r.Coder, r.Judge, r.Seed, r.MaxRounds, r.Settings,
		r.Status, r.Stop, r.Reason, r.Hint, detail, r.CreatedMS, r.StartedMS, r.FinishedMS, r.ID)
	if err != nil {
		return fmt.Errorf("record run %d: %w", r.ID, err)
	}
	if rounds == 0 {
		if moved || !pinned { // else another text of the task may be what was recorded last
			return s.pin(ctx, tx, r.ID)
		}
		return nil
	}
	if r.Status == kernelwright.RunDone {
		if _, err := tx.ExecContext(ctx, LearnQuery, r.ID); err != nil {
			return fmt.Errorf("note the lessons of run %d: %w", r.ID, err)
		}
	}
	return nil
}

// pin notes which description of its task and device a run works from: that of
// its task which was recorded last.
func (s *Store) pin(ctx context.Context, tx *sql.Tx, run int64) error {
	_, err := tx.ExecContext(ctx, `UPDATE runs SET (task_source, task_graph, task_detail) =
		(SELECT source, graph, detail FROM tasks WHERE fingerprint = runs.task),
		device_detail = (SELECT detail FROM devices WHERE key = runs.device_key) WHERE id = ?`, run)
	return err
}

func (s *Store) runDetail(ctx context.Context, tx *sql.Tx, r kernelwright.Run) (any, error) {
	if r.Detail == "" {
		return nil, nil
	}
	return s.putText(ctx, tx, r.Detail, r.Detail)
}

const runColumns = `runs.id, runs.task, runs.task_name, runs.path, runs.device, runs.device_key, runs.strategy, runs.coder, runs.judge, runs.seed,
	runs.max_rounds, runs.settings, runs.status, runs.stop, runs.reason, runs.hint, runs.detail, runs.created, runs.started, runs.finished, runs.best`

func scanRun(scan func(...any) error, more ...any) (r kernelwright.Run, detail, best sql.NullInt64, err error) {
	err = scan(append([]any{&r.ID, &r.Task, &r.TaskName, &r.Path, &r.Device, &r.DeviceKey, &r.Strategy, &r.Coder, &r.Judge, &r.Seed,
		&r.MaxRounds, &r.Settings, &r.Status, &r.Stop, &r.Reason, &r.Hint, &detail, &r.CreatedMS, &r.StartedMS, &r.FinishedMS, &best}, more...)...)
	return r, detail, best, err
}

// Run returns a run with its best round, or ErrNotFound.
func (s *Store) Run(ctx context.Context, id int64) (kernelwright.Run, error) {
	r, detail, best, err := scanRun(s.read.QueryRowContext(ctx, `SELECT `+runColumns+` FROM runs WHERE id = ?`, id).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return r, fmt.Errorf("run %d: %w", id, ErrNotFound)
	}
	if err != nil {
		return r, err
	}
	if r.Detail, err = s.optionalText(ctx, s.read, detail); err != nil {
		return r, err
	}
	if best.Valid {
		round, err := s.Round(ctx, id, int(best.Int64))
		if err != nil {
			return r, err
		}
		r.Best = &round
	}
	return r, nil
}

// RunFilter chooses runs. Empty fields do not narrow.
type RunFilter struct {
	Task      string // fingerprint
	Name      string // of the task
	Path      string
	DeviceKey string
	Status    kernelwright.RunStatus
	Strategy  string
	Coder     string
	// Of the best round: its language, and the least speedup that it has.
	Language     kernelwright.Language
	LeastSpeedup float64
	Result       kernelwright.Result // of runs that are done
	Operator     string              // is in the name of an operator of the task; in small or large letters
	SinceMS      int64               // created then or later
	UntilMS      int64               // created before
	// Before pages: only runs with a smaller ID, or with Oldest a larger one. The
	// next page's is the last ID of this one. 0 starts at the newest.
	Before int64
	Oldest bool // the oldest first
	Limit  int  // 0 means DefaultLimit
}

// DefaultLimit is how many rows a page has when nobody says.
const DefaultLimit = 50

// ids is a query of the numbers of the runs that match, in the order of the list; none:
// there are none.
func (s *Store) ids(ctx context.Context, f RunFilter) (query string, args []any, none bool, err error) {
	p := Page{From: f.Before, Oldest: f.Oldest, Limit: f.Limit}
	c, none, err := s.facetsOf(ctx, f)
	if none || err != nil {
		return "", nil, none, err
	}
	var where []string
	for _, of := range []struct{ column, value string }{{"runs.task", f.Task}, {"runs.task_name", f.Name}, {"runs.path", f.Path}} {
		if of.value != "" {
			where, args = append(where, of.column+" = ?"), append(args, of.value)
		}
	}
	if len(where) == 0 {
		query, args, err = s.facetQuery(ctx, c, p)
		return query, args, false, err
	}
	// Those of a task are few, or the newest are soon found.
	from := `SELECT runs.id AS run FROM runs`
	if len(c.indexed)+len(c.where) > 0 {
		from += ` CROSS JOIN run_facets f NOT INDEXED ON f.run = runs.id`
	}
	for _, w := range c.where {
		where = append(where, strings.Replace(w, "f.run ", "runs.id ", 1))
	}
	args = append(args, c.args...)
	for _, i := range c.indexed {
		where, args = append(where, i.text), append(args, i.arg)
	}
	query, args = p.query(from, "runs.id", where, args...)
	return query, args, false, nil
}

// CountRuns counts the runs that match, on this page and on those after it.
func (s *Store) CountRuns(ctx context.Context, f RunFilter) (n int64, err error) {
	f.Limit = 0
	ids, args, none, err := s.ids(ctx, f)
	if none || err != nil {
		return 0, err
	}
	return n, s.read.QueryRowContext(ctx, `SELECT count(*) FROM (`+ids+`)`, args...).Scan(&n)
}

// Runs returns the runs that match, the newest first unless Oldest, without their tracebacks.
// Their best rounds carry the key figures only: no source, and of the verdict
// what its columns hold (status, reason, level, times, speedup, headroom). Ask
// Run for the rest.
func (s *Store) Runs(ctx context.Context, f RunFilter) ([]kernelwright.Run, error) {
	if f.Limit <= 0 {
		f.Limit = DefaultLimit
	}
	ids, args, none, err := s.ids(ctx, f)
	if none || err != nil {
		return nil, err
	}
	query := `SELECT ` + runColumns + `, b.language, b.origin, b.note, b.started, b.finished, b.overhead_ms, ` +
		verdictColumns("v") + `, ` + verdictColumns("c") + ` FROM (` + ids + `) q CROSS JOIN runs ON runs.id = q.run
		LEFT JOIN rounds b ON b.run = runs.id AND b.idx = runs.best
		LEFT JOIN verdicts v ON v.id = b.verdict
		LEFT JOIN certificates ce ON ce.run = b.run AND ce.idx = b.idx
		LEFT JOIN verdicts c ON c.id = ce.verdict ORDER BY runs.id`
	if !f.Oldest {
		query += ` DESC`
	}
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(rows *sql.Rows) (kernelwright.Run, error) {
		var language, origin, note sql.NullString
		var started, finished sql.NullInt64
		var overhead sql.NullFloat64
		var v, c verdictRow
		more := append([]any{&language, &origin, &note, &started, &finished, &overhead}, append(v.into(), c.into()...)...)
		r, _, best, err := scanRun(rows.Scan, more...)
		if err == nil && best.Valid {
			r.Best = &kernelwright.Round{
				RunID: r.ID, Index: int(best.Int64),
				Candidate: kernelwright.Candidate{Language: kernelwright.Language(language.String), Origin: origin.String, Note: note.String},
				StartedMS: started.Int64, FinishedMS: finished.Int64, OverheadMS: overhead.Float64,
			}
			if verdict := v.verdict(r); verdict != nil {
				r.Best.Verdict = *verdict
			}
			r.Best.Certificate = c.verdict(r)
		}
		return r, err
	})
}

// Worked is a reference on a device, and the newest run on it.
type Worked struct {
	Task      string // fingerprint
	Reference string // hex SHA-256 of its text; empty where that was not kept
	DeviceKey string
	RunID     int64
}

// Worked returns each reference and device that runs worked on, the latest
// first: those of a task's fingerprint, else of its path, else of its name,
// whichever is given. The other fields of the filter do not count.
func (s *Store) Worked(ctx context.Context, f RunFilter) ([]Worked, error) {
	column, value := "task", f.Task
	switch {
	case f.Task != "":
	case f.Path != "":
		column, value = "path", f.Path
	default:
		column, value = "task_name", f.Name
	}
	var all []Worked
	for last := (Worked{}); ; {
		// Runs whose reference was never read have no task: they are passed over.
		err := s.read.QueryRowContext(ctx, workedQuery(column), value, last.Task, last.DeviceKey).Scan(&last.Task, &last.DeviceKey)
		if errors.Is(err, sql.ErrNoRows) {
			break
		}
		if err != nil {
			return nil, err
		}
		rows, err := s.read.QueryContext(ctx, workedTexts(column), value, last.Task, last.DeviceKey)
		if err != nil {
			return nil, err
		}
		texts, err := scanAll(rows, func(r *sql.Rows) (w Worked, err error) {
			w = last
			return w, r.Scan(&w.RunID, &w.Reference)
		})
		if err != nil {
			return nil, err
		}
		all = append(all, texts...)
	}
	slices.SortFunc(all, func(a, b Worked) int { return cmp.Compare(b.RunID, a.RunID) })
	return all, nil
}

func workedQuery(column string) string {
	return `SELECT task, device_key FROM runs WHERE ` + column + ` = ? AND (task, device_key) > (?, ?) ORDER BY task, device_key LIMIT 1`
}

// workedTexts is the newest run on each text of a task on a device.
func workedTexts(column string) string {
	return `SELECT max(id), coalesce((SELECT lower(hex(hash)) FROM texts WHERE texts.id = task_source), '') FROM runs WHERE ` + column + ` = ? AND task = ? AND device_key = ? GROUP BY task_source`
}

// verdictRow is the columns of a verdict; all null where there is none.
type verdictRow struct {
	status, reason, level, against sql.NullString
	ms, speedup, low, high, head   sql.NullFloat64
}

func verdictColumns(table string) string {
	columns := []string{"status", "reason", "level", "against", "candidate_ms", "speedup", "speedup_low", "speedup_high", "headroom"}
	return table + "." + strings.Join(columns, ", "+table+".")
}

func (v *verdictRow) into() []any {
	return []any{&v.status, &v.reason, &v.level, &v.against, &v.ms, &v.speedup, &v.low, &v.high, &v.head}
}

func (v *verdictRow) verdict(r kernelwright.Run) *kernelwright.Verdict {
	if !v.status.Valid {
		return nil
	}
	verdict := &kernelwright.Verdict{
		Status: kernelwright.Status(v.status.String), Reason: v.reason.String, Level: kernelwright.Level(v.level.String),
		Task: r.Task, Device: r.Device, DeviceKey: r.DeviceKey, CandidateMS: v.ms.Float64, Headroom: v.head.Float64,
	}
	if v.speedup.Valid {
		verdict.Speedup = &kernelwright.Speedup{Value: v.speedup.Float64, Low: v.low.Float64, High: v.high.Float64, Against: v.against.String}
	}
	return verdict
}
