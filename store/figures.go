package store

import (
	"context"
	"database/sql"
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
	var where []string
	var args []any
	narrow := func(condition string, with ...any) { where, args = append(where, condition), append(args, with...) }
	var runs []string // the conditions on runs have indexes
	for _, of := range []struct{ column, value string }{{"task", f.Task}, {"task_name", f.Name}} {
		if of.value != "" {
			runs, args = append(runs, of.column+" = ?"), append(args, of.value)
		}
	}
	if len(runs) > 0 {
		where = append(where, `r.run IN (SELECT id FROM runs WHERE `+strings.Join(runs, " AND ")+`)`)
	}
	if f.DeviceKey != "" {
		narrow("r.device_key = ?", f.DeviceKey)
	}
	if f.Language != "" {
		narrow("r.language = ?", f.Language)
	}
	const certificates = `certificates e ON e.run = r.run AND e.idx = r.idx`
	from, by := `rounds r LEFT JOIN `+certificates, "r"
	switch narrowed := f.Language != "" || f.DeviceKey != ""; {
	case f.Certified && narrowed: // their indexes are of rounds, in the order of the list
		from = `rounds r CROSS JOIN ` + certificates
	case f.Certified:
		from, by = `certificates e CROSS JOIN rounds r ON r.run = e.run AND r.idx = e.idx`, "e"
	}
	if f.Certified {
		where = append(where, `r.standing = 2`)
	}
	if f.Status != "" {
		if f.Certified && f.Status != kernelwright.Certified {
			return nil, nil
		}
		narrow("coalesce(c.status, v.status) = ?", f.Status)
		rare, err := s.rareVerdicts(ctx, f.Status)
		if err != nil {
			return nil, err
		}
		if rare && !f.Certified { // from them to their rounds; else from the newest round on
			const those = `IN (SELECT id FROM verdicts WHERE status = ?)`
			from = `(SELECT run, idx FROM rounds WHERE verdict ` + those + ` UNION SELECT run, idx FROM certificates WHERE verdict ` + those + `) q
				CROSS JOIN rounds r ON r.run = q.run AND r.idx = q.idx LEFT JOIN ` + certificates
			args = append([]any{f.Status, f.Status}, args...)
		}
	}
	if f.BeforeRun != 0 {
		narrow("("+by+".run, "+by+".idx) < (?, ?)", f.BeforeRun, f.BeforeRound)
	}
	if f.Limit <= 0 {
		f.Limit = DefaultLimit
	}
	query := figuresQuery + from + figuresJoins
	if len(where) > 0 {
		query += ` WHERE ` + strings.Join(where, " AND ")
	}
	rows, err := s.read.QueryContext(ctx, query+` ORDER BY `+by+`.run DESC, `+by+`.idx DESC LIMIT ?`, append(args, f.Limit)...)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, scanFigures)
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
	err = s.read.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM devices), (SELECT count(*) FROM certificates WHERE sha256 <> ''),
		(SELECT page_count FROM pragma_page_count) * (SELECT page_size FROM pragma_page_size)`).Scan(&c.Tasks, &c.Devices, &c.Kernels, &c.Bytes)
	if err != nil {
		return c, err
	}
	rows, err := s.read.QueryContext(ctx, `SELECT status, count(*) FROM runs GROUP BY status`)
	if err != nil {
		return c, err
	}
	defer rows.Close()
	c.Runs = map[string]int64{}
	for rows.Next() {
		var status string
		var n int64
		if err := rows.Scan(&status, &n); err != nil {
			return c, err
		}
		c.Runs[status] = n
	}
	return c, rows.Err()
}
