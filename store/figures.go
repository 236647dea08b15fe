package store

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// Figures are the key figures of a round: its verdict's, and where it has a certificate
// that one's.
type Figures struct {
	Run         int64                 `json:"run"`
	Round       int                   `json:"round"`
	Task        string                `json:"task"` // fingerprint
	TaskName    string                `json:"task_name"`
	Device      string                `json:"device"`
	DeviceKey   string                `json:"device_key"`
	Language    kernelwright.Language `json:"language"`
	Candidate   string                `json:"candidate_sha256"` // of its text
	Note        string                `json:"note"`
	Status      kernelwright.Status   `json:"status"` // of the verdict
	Reason      string                `json:"reason"`
	Level       kernelwright.Level    `json:"level"`
	CandidateMS float64               `json:"candidate_ms" unknown:"0"`
	Speedup     *kernelwright.Speedup `json:"speedup"`
	Headroom    float64               `json:"headroom" unknown:"0"`
	Exported    string                `json:"exported_sha256,omitempty"` // of the certified file
	FinishedMS  int64                 `json:"finished" time:"ms"`
}

// FiguresFilter chooses rounds. Empty fields do not narrow.
type FiguresFilter struct {
	Task      string // fingerprint
	Name      string // of the task
	DeviceKey string
	Language  kernelwright.Language
	Status    kernelwright.Status // of the verdict, or of the certificate
	// Certified is of kernels alone.
	Certified bool
	// Before pages: only rounds before this one, the newest first. Run 0: from the newest.
	BeforeRun   int64
	BeforeRound int
	Limit       int // 0 means DefaultLimit
}

// Figures returns the rounds that match, those of the newest run first.
func (s *Store) Figures(ctx context.Context, f FiguresFilter) ([]Figures, error) {
	if f.Certified && f.Status != "" && f.Status != kernelwright.Certified {
		return nil, nil
	}
	if f.Language != "" && f.DeviceKey != "" { // a device may have none of a language: then nothing is gone through
		var some bool
		if err := s.read.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM rounds INDEXED BY rounds_made WHERE device_key = ? AND language = ?)`, f.DeviceKey, f.Language).Scan(&some); err != nil || !some {
			return nil, err
		}
	}
	from, err := s.figuresFrom(ctx, f)
	if err != nil {
		return nil, err
	}
	where, args := slices.Clone(from.where), slices.Clone(from.args)
	narrow := func(condition string, with ...any) { where, args = append(where, condition), append(args, with...) }
	if f.DeviceKey != "" {
		narrow("r.device_key = ?", f.DeviceKey)
	}
	if f.Language != "" {
		narrow("r.language = ?", f.Language)
	}
	if f.Certified {
		narrow("r.standing = 2")
	}
	if f.Status != "" {
		narrow("coalesce(c.status, v.status) = ?", f.Status)
	}
	if f.BeforeRun != 0 {
		narrow("("+from.run+", "+from.index+") < (?, ?)", f.BeforeRun, f.BeforeRound)
		narrow(from.run+" <= ?", f.BeforeRun)
	}
	if f.Limit <= 0 {
		f.Limit = DefaultLimit
	}
	query := figuresQuery + from.tables + figuresJoins
	if len(where) > 0 {
		query += ` WHERE ` + strings.Join(where, " AND ")
	}
	rows, err := s.read.QueryContext(ctx, query+` ORDER BY `+from.run+` DESC, `+from.index+` DESC LIMIT ?`, append(args, f.Limit)...)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, scanFigures)
}

// figuresFrom is where rounds r, with their certificates e, are looked for: what comes
// first in its tables is gone through, and has the order of the list in run and index.
type figuresFrom struct {
	tables, run, index string
	where              []string // with their arguments, of tables first
	args               []any
}

func (s *Store) figuresFrom(ctx context.Context, f FiguresFilter) (from figuresFrom, err error) {
	const certificates = `certificates e ON e.run = r.run AND e.idx = r.idx`
	joined := ` LEFT JOIN ` + certificates
	if f.Certified {
		joined = ` CROSS JOIN ` + certificates
	}
	from = figuresFrom{run: "r.run", index: "r.idx"}
	if f.Status != "" && !f.Certified {
		rare, err := s.rareVerdicts(ctx, f.Status)
		if err != nil {
			return from, err
		}
		if rare { // from them to their rounds
			const those = `IN (SELECT id FROM verdicts WHERE status = ?)`
			from.tables = `(SELECT run, idx FROM rounds WHERE verdict ` + those + ` UNION SELECT run, idx FROM certificates WHERE verdict ` + those + `) q
				CROSS JOIN rounds r ON r.run = q.run AND r.idx = q.idx` + joined
			from.args = []any{f.Status, f.Status}
			for _, of := range []struct{ column, value string }{{"u.task", f.Task}, {"u.task_name", f.Name}} {
				if of.value != "" {
					from.where, from.args = append(from.where, of.column+" = ?"), append(from.args, of.value)
				}
			}
			return from, nil
		}
	}
	switch {
	case f.Task != "" || f.Name != "": // from the runs of a task to their rounds
		from.tables, from.run = `runs w INDEXED BY runs_name CROSS JOIN rounds r ON r.run = w.id`+joined, "w.id"
		if f.Task != "" {
			from.tables = `runs w INDEXED BY runs_task CROSS JOIN rounds r ON r.run = w.id` + joined
		}
		for _, of := range []struct{ column, value string }{{"w.task", f.Task}, {"w.task_name", f.Name}, {"w.device_key", f.DeviceKey}} {
			if of.value != "" {
				from.where, from.args = append(from.where, of.column+" = ?"), append(from.args, of.value)
			}
		}
	case f.Language != "" && f.DeviceKey != "":
		from.tables = `rounds r INDEXED BY rounds_made` + joined
	case f.Language != "":
		from.tables = `rounds r INDEXED BY rounds_language` + joined
	case f.DeviceKey != "":
		from.tables = `rounds r INDEXED BY rounds_device` + joined
	case f.Certified:
		from.tables, from.run, from.index = `certificates e CROSS JOIN rounds r ON r.run = e.run AND r.idx = e.idx`, "e.run", "e.idx"
	default:
		from.tables = `rounds r` + joined
	}
	return from, nil
}

// figuresQuery and figuresJoins are round what rounds r and certificates e come from.
var (
	figuresQuery = `SELECT r.run, r.idx, r.task, u.task_name, u.device, r.device_key, r.language, lower(hex(t.hash)), r.note, r.finished, coalesce(e.sha256, ''), ` +
		verdictColumns("v") + `, ` + verdictColumns("c") + ` FROM `
	figuresJoins = ` JOIN runs u ON u.id = r.run JOIN texts t ON t.id = r.candidate JOIN verdicts v ON v.id = r.verdict LEFT JOIN verdicts c ON c.id = e.verdict`
)

func scanFigures(r *sql.Rows) (g Figures, err error) {
	var v, c verdictRow
	err = r.Scan(append([]any{&g.Run, &g.Round, &g.Task, &g.TaskName, &g.Device, &g.DeviceKey, &g.Language, &g.Candidate, &g.Note, &g.FinishedMS, &g.Exported}, append(v.into(), c.into()...)...)...)
	counts := v.verdict(kernelwright.Run{})
	if certificate := c.verdict(kernelwright.Run{}); certificate != nil {
		counts = certificate
	}
	if err == nil && counts != nil {
		g.Status, g.Reason, g.Level, g.CandidateMS, g.Speedup, g.Headroom = counts.Status, counts.Reason, counts.Level, counts.CandidateMS, counts.Speedup, counts.Headroom
	}
	return g, err
}

// fewVerdicts are so few that looking at all of them is quicker than looking for them.
const fewVerdicts = 5000

// rareVerdicts reports whether few verdicts have a status.
func (s *Store) rareVerdicts(ctx context.Context, status kernelwright.Status) (rare bool, err error) {
	err = s.read.QueryRowContext(ctx, `SELECT count(*) <= ?2 FROM (SELECT 1 FROM verdicts WHERE status = ?1 LIMIT ?2 + 1)`, status, fewVerdicts).Scan(&rare)
	return rare, err
}

// Counts is how much there is of what.
type Counts struct {
	Runs    map[string]int64 `json:"runs"` // by status
	Waiting int              `json:"waiting"`
	Claimed int              `json:"claimed"`
	Tasks   int64            `json:"tasks"`
	Devices int64            `json:"devices"`
	Kernels int64            `json:"kernels"` // certified
	Bytes   int64            `json:"bytes"`   // of the database, without its log
}

// Counts counts.
func (s *Store) Counts(ctx context.Context) (c Counts, err error) {
	if c.Waiting, c.Claimed, err = s.QueueLength(ctx); err != nil {
		return c, err
	}
	err = s.read.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM devices),
		(SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)`).Scan(&c.Tasks, &c.Devices, &c.Bytes)
	if err != nil {
		return c, err
	}
	rows, err := s.read.QueryContext(ctx, `SELECT value, n, kernels FROM (SELECT status, count(*) AS n, sum(kernels) AS kernels
		FROM run_facets INDEXED BY run_facets_counts GROUP BY status) JOIN facets ON id = status`)
	if err != nil {
		return c, err
	}
	defer rows.Close()
	c.Runs = map[string]int64{}
	for rows.Next() {
		var status string
		var n, kernels int64
		if err := rows.Scan(&status, &n, &kernels); err != nil {
			return c, err
		}
		c.Runs[status] = n
		c.Kernels += kernels
	}
	return c, rows.Err()
}
