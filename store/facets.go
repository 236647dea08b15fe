package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"math"
	"slices"
	"strings"

	"modernc.org/sqlite"

	"github.com/kernelwright/kernelwright"
)

func init() {
	sqlite.MustRegisterDeterministicScalarFunction("speedup_result", 3, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		var s kernelwright.Speedup
		for i, into := range []*float64{&s.Value, &s.Low, &s.High} {
			v, ok := args[i].(float64)
			if !ok {
				return string(kernelwright.ResultNotTimed), nil
			}
			*into = v
		}
		return string(kernelwright.ResultOf(&s)), nil
	})
	// Of a task that cannot be read there are none: the history stays usable.
	sqlite.MustRegisterDeterministicScalarFunction("lower_operators", 1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		body, _ := args[0].([]byte)
		all := operatorsOf(body)
		for i := range all {
			all[i] = strings.ToLower(all[i])
		}
		slices.Sort(all)
		return strings.Join(slices.Compact(all), "\n"), nil
	})
}

// Facets of runs r as run_facets has them, and the texts that they are numbers of.
const (
	facetSources = ` FROM runs r LEFT JOIN rounds b ON b.run = r.id AND b.idx = r.best LEFT JOIN certificates c ON c.run = b.run AND c.idx = b.idx AND b.standing = 2
		LEFT JOIN verdicts v ON v.id = coalesce(c.verdict, b.verdict)`
	facetResult    = `CASE WHEN r.status <> 'done' THEN NULL WHEN b.standing IS NOT 2 THEN 'not_certified' ELSE speedup_result(v.speedup, v.speedup_low, v.speedup_high) END`
	facetOperators = `(SELECT lower_operators(body) FROM tasks JOIN texts ON texts.id = tasks.detail WHERE fingerprint = r.task)`
	facetNumber    = `(SELECT id FROM facets WHERE value = `
	facetRow       = `SELECT r.id, r.created, r.created / 86400000, ` + facetNumber + `r.device_key), ` + facetNumber + `r.strategy), ` + facetNumber + `r.coder), ` + facetNumber + `r.status), ` +
		facetNumber + facetResult + `), ` + facetNumber + `b.language), ` + facetNumber + facetOperators + `), v.speedup, (SELECT count(*) FROM certificates WHERE run = r.id AND sha256 <> '')` + facetSources
	facetColumns = `run, created, day, device, strategy, coder, status, result, language, operators, speedup, kernels`

	newFacets = `INSERT OR IGNORE INTO facets (value) SELECT f.value FROM (SELECT r.device_key AS value` + facetSources + `%[1]s UNION SELECT r.strategy FROM runs r%[1]s
		UNION SELECT r.coder FROM runs r%[1]s UNION SELECT r.status FROM runs r%[1]s UNION SELECT ` + facetResult + facetSources + `%[1]s
		UNION SELECT b.language` + facetSources + `%[1]s UNION SELECT ` + facetOperators + ` FROM runs r%[1]s) f WHERE f.value IS NOT NULL`
)

// FacetQueries note what one run is chosen by: for who records in bulk. Each takes its number.
var FacetQueries = []string{
	strings.ReplaceAll(newFacets, "%[1]s", ` WHERE r.id = ?1`),
	`INSERT OR REPLACE INTO run_facets (` + facetColumns + `) ` + facetRow + ` WHERE r.id = ?1`,
}

// facetTriggers have a connection keep facets up. They are the connection's, as those of
// digests are.
func facetTriggers(ctx context.Context, db *sql.DB) (string, error) {
	var there bool // not in a file of an earlier version, which Salvage makes
	if err := db.QueryRowContext(ctx, `SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'run_facets'`).Scan(&there); err != nil || !there {
		return "", err
	}
	note := strings.ReplaceAll(newFacets, "%[1]s", ` WHERE r.id = NEW.id`) + `; DELETE FROM run_facets WHERE run = NEW.id;
		INSERT INTO run_facets (` + facetColumns + `) ` + facetRow + ` WHERE r.id = NEW.id`
	const operators = `(SELECT lower_operators(body) FROM texts WHERE id = NEW.detail)`
	renamed := `INSERT OR IGNORE INTO facets (value) SELECT ` + operators + `; UPDATE run_facets SET operators = ` + facetNumber + operators + `) WHERE run IN (SELECT id FROM runs WHERE task = NEW.fingerprint)`
	return `CREATE TEMP TRIGGER facets_of_new_run AFTER INSERT ON main.runs BEGIN ` + note + `; END;
		CREATE TEMP TRIGGER facets_of_run AFTER UPDATE OF created, device_key, strategy, coder, status, best, task, task_source ON main.runs BEGIN ` + note + `; END;
		CREATE TEMP TRIGGER facets_of_new_task AFTER INSERT ON main.tasks BEGIN ` + renamed + `; END;
		CREATE TEMP TRIGGER facets_of_task AFTER UPDATE OF detail ON main.tasks WHEN NEW.detail <> OLD.detail
			AND (SELECT lower_operators(body) FROM texts WHERE id = NEW.detail) IS NOT (SELECT lower_operators(body) FROM texts WHERE id = OLD.detail) BEGIN ` + renamed + `; END;
		CREATE TEMP TRIGGER charges_renamed AFTER UPDATE OF task_name ON main.runs WHEN NEW.task_name <> OLD.task_name BEGIN
			` + renameCharges + `; END;
`, nil
}

// fewRuns are so few that sorting all of them is quicker than looking for them among others.
const fewRuns = 2000

// facetCondition is a condition on a row f of run_facets that has an index.
type facetCondition struct {
	text, index string
	arg         any
	equal       bool // rows that meet it lie in its index in the order of runs
}

// facetFilter is the conditions of a RunFilter on rows f of run_facets.
type facetFilter struct {
	indexed []facetCondition
	where   []string // the others
	args    []any
}

func (c *facetFilter) narrow(condition string, arg any) {
	c.where, c.args = append(c.where, condition), append(c.args, arg)
}

// facetsOf reads what a filter asks of facets; none says that no run can be so.
func (s *Store) facetsOf(ctx context.Context, f RunFilter) (c facetFilter, none bool, err error) {
	for _, of := range []struct{ column, value string }{
		{"device", f.DeviceKey}, {"strategy", f.Strategy}, {"coder", f.Coder}, {"status", string(f.Status)}, {"result", string(f.Result)}, {"language", string(f.Language)},
	} {
		if of.value == "" {
			continue
		}
		var id int64
		err := s.read.QueryRowContext(ctx, `SELECT id FROM facets WHERE value = ?`, of.value).Scan(&id)
		if err != nil {
			return c, errors.Is(err, sql.ErrNoRows), ignoring(err, sql.ErrNoRows)
		}
		c.indexed = append(c.indexed, facetCondition{"f." + of.column + " = ?", "run_facets_" + of.column, id, true})
	}
	if f.Operator != "" {
		sets, err := s.operatorSets(ctx, f.Operator)
		if err != nil || sets == "[]" {
			return c, true, err
		}
		c.indexed = append(c.indexed, facetCondition{"f.operators IN (SELECT value FROM json_each(?))", "run_facets_operators", sets, false})
	}
	if f.LeastSpeedup > 0 {
		c.indexed = append(c.indexed, facetCondition{"f.speedup >= ?", "run_facets_speedup", f.LeastSpeedup, false})
	}
	none, err = s.facetDays(ctx, f, &c)
	return c, none, err
}

// ignoring is an error, unless it is one that says nothing.
func ignoring(err, nothing error) error {
	if errors.Is(err, nothing) {
		return nil
	}
	return err
}

// operatorSets returns the numbers of those sets of operators in which one has this in its
// name, as a JSON list.
func (s *Store) operatorSets(ctx context.Context, operator string) (list string, err error) {
	return list, s.read.QueryRowContext(ctx, `SELECT json_group_array(id) FROM facets WHERE instr(value, ?) > 0`, strings.ToLower(operator)).Scan(&list)
}

// facetDays bounds a filter by when runs were created. Their numbers grow with that time,
// unless a clock was set: so what is looked through begins and ends with the first and the
// last run of all days that count, which an index has day by day.
func (s *Store) facetDays(ctx context.Context, f RunFilter, c *facetFilter) (none bool, err error) {
	const days = `WITH RECURSIVE d(day) AS (SELECT min(day) FROM run_facets WHERE day BETWEEN ?1 AND ?2 UNION ALL
		SELECT (SELECT min(o.day) FROM run_facets o WHERE o.day > d.day AND o.day <= ?2) FROM d WHERE d.day IS NOT NULL)
		SELECT %[1]s((SELECT %[1]s(run) FROM run_facets o WHERE o.day = d.day)) FROM d`
	for _, of := range []struct {
		ms                     int64
		beyond, bound, outmost string
		from, to               int64
	}{
		{f.SinceMS, "f.created >= ?", "f.run >= ?", "min", floorDay(f.SinceMS), math.MaxInt32},
		{f.UntilMS, "f.created < ?", "f.run <= ?", "max", math.MinInt32, floorDay(f.UntilMS)},
	} {
		if of.ms == 0 {
			continue
		}
		var run sql.NullInt64
		if err := s.read.QueryRowContext(ctx, strings.ReplaceAll(days, "%[1]s", of.outmost), of.from, of.to).Scan(&run); err != nil || !run.Valid {
			return true, err
		}
		c.narrow(of.beyond, of.ms)
		c.narrow(of.bound, run.Int64)
	}
	return false, nil
}

// floorDay is the day of a time, as SQLite divides it.
func floorDay(ms int64) int64 { return ms / dayMS }

// query selects the numbers of the runs that match, as they are listed: so many of those
// after a page.
func (s *Store) facetQuery(ctx context.Context, c facetFilter, p Page) (string, []any, error) {
	from, walked, err := s.facetIndex(ctx, c)
	if err != nil {
		return "", nil, err
	}
	where, args := slices.Clone(c.where), slices.Clone(c.args)
	for _, i := range c.indexed {
		where, args = append(where, i.text), append(args, i.arg)
	}
	order := "f.run"
	if !walked { // few: they are sorted
		order = "+f.run"
	}
	beyond, way := " < ?", " DESC"
	if p.Oldest {
		beyond, way = " > ?", ""
	}
	if p.From != 0 {
		where, args = append(where, "f.run"+beyond), append(args, p.From)
	}
	query := `SELECT f.run FROM run_facets f ` + from
	if len(where) > 0 {
		query += ` WHERE ` + strings.Join(where, " AND ")
	}
	if p.Limit <= 0 {
		p.Limit = -1
	}
	return query + ` ORDER BY ` + order + way + ` LIMIT ?`, append(args, p.Limit), nil
}

// facetIndex chooses how rows that match are found: where a condition holds of few, by its
// index; where it is the only one, in its index as well; else one after the other in the
// order of the list, of which soon enough will match. walked says that they come in order.
func (s *Store) facetIndex(ctx context.Context, c facetFilter) (from string, walked bool, err error) {
	least := int64(fewRuns + 1)
	for _, i := range c.indexed {
		var n int64
		err := s.read.QueryRowContext(ctx, `SELECT count(*) FROM (SELECT 1 FROM run_facets f INDEXED BY `+i.index+` WHERE `+i.text+` LIMIT ?)`, i.arg, fewRuns+1).Scan(&n)
		if err != nil {
			return "", false, err
		}
		if n < least {
			least, from = n, `INDEXED BY `+i.index
		}
	}
	switch {
	case from != "":
		return from, false, nil
	case len(c.indexed) == 1 && c.indexed[0].equal:
		return `INDEXED BY ` + c.indexed[0].index, true, nil
	}
	return `NOT INDEXED`, true, nil
}
