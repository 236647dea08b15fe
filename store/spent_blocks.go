package store

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/kernelwright/kernelwright"
)

// kindSpent is of the cache: what was spent by task in a block of days that are over, so that
// the sums of a year are not made of every run in it. A key is a block's number.
const kindSpent = "spent"

// spentDays is how many days a block has.
const spentDays = 8

// taskSums is what was spent, by name of a task.
type taskSums map[string]*kernelwright.Spend

func (t taskSums) add(name []byte, spend *kernelwright.Spend) {
	of := t[string(name)]
	if of == nil {
		of = &kernelwright.Spend{}
		t[string(name)] = of
	}
	*of = of.Add(*spend)
}

// taskRun is what was spent in a run, in days that are no whole block.
type taskRun struct {
	name  []byte
	run   uint64
	spend kernelwright.Spend
}

// SpendingByTask returns what was spent on each name of a task since a time, the most
// first.
func (s *Store) SpendingByTask(ctx context.Context, sinceMS int64, limit int) ([]TaskSpending, error) {
	var oldest, until int64
	if err := s.read.QueryRowContext(ctx, `SELECT coalesce(min(day), 0), coalesce(max(day) + 1, 0) FROM charge_days`).Scan(&oldest, &until); err != nil {
		return nil, err
	}
	from := max(nextDay(sinceMS)/dayMS, oldest)
	first, end := (from+spentDays-1)/spentDays, until/spentDays
	if first >= end {
		first, end = 0, 0
	}
	blocks, err := s.spentBlocks(ctx, first, end)
	if err != nil {
		return nil, err
	}
	const live = ` UNION ALL SELECT task_name, run, ` + spendColumns + ` FROM charges JOIN runs ON runs.id = charges.run WHERE `
	rest, err := s.spentIn(ctx, ` WHERE day >= ?2 / 86400000 AND NOT (day >= ?3 AND day < ?4)`+live+`ended >= max(?1, `+summedUntil+`) GROUP BY 1, 2
		`+live+`ended >= ?1 AND ended < min(?2, `+summedUntil+`) GROUP BY 1, 2`, sinceMS, nextDay(sinceMS), first*spentDays, end*spentDays)
	if err != nil {
		return nil, err
	}
	sums := taskSums{}
	for _, block := range blocks {
		readSpent(block, func(name []byte, spend *kernelwright.Spend, _ []byte) { sums.add(name, spend) })
	}
	for i := range rest {
		sums.add(rest[i].name, &rest[i].spend)
	}
	all := make([]string, 0, len(sums))
	for name := range sums {
		all = append(all, name)
	}
	slices.SortFunc(all, func(a, b string) int {
		x, y := sums[a], sums[b]
		return cmp.Or(cmp.Compare(y.USD, x.USD), cmp.Compare(y.TokensIn+y.TokensOut, x.TokensIn+x.TokensOut), cmp.Compare(a, b))
	})
	all = all[:min(len(all), limit)]
	runs := map[string]map[uint64]bool{}
	for _, name := range all {
		runs[name] = map[uint64]bool{}
	}
	for _, block := range blocks {
		readSpent(block, func(name []byte, _ *kernelwright.Spend, list []byte) {
			if of := runs[string(name)]; of != nil {
				eachRun(list, of)
			}
		})
	}
	for _, r := range rest {
		if of := runs[string(r.name)]; of != nil {
			of[r.run] = true
		}
	}
	found := make([]TaskSpending, len(all))
	for i, name := range all {
		found[i] = TaskSpending{TaskName: name, Runs: int64(len(runs[name])), Spend: *sums[name]}
	}
	return found, nil
}

// eachRun adds the runs of a list: uvarints of differences.
func eachRun(list []byte, to map[uint64]bool) {
	for run := uint64(0); len(list) > 0; {
		apart, n := binary.Uvarint(list)
		if n <= 0 {
			return
		}
		run, list = run+apart, list[n:]
		to[run] = true
	}
}

// spentIn returns the sums by run that a condition on charge_runs gives.
func (s *Store) spentIn(ctx context.Context, where string, args ...any) ([]taskRun, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT task_name, run, `+spendNames+` FROM charge_runs`+where, args...)
	if err != nil {
		return nil, err
	}
	return scanAll(rows, func(r *sql.Rows) (of taskRun, err error) {
		return of, r.Scan(append([]any{&of.name, &of.run}, spendInto(&of.spend)...)...)
	})
}

// spentBlocks returns what was spent in blocks of days. One that is not kept, or that is of
// other sums than those of its days, is summed and kept.
func (s *Store) spentBlocks(ctx context.Context, first, end int64) (blocks [][]byte, err error) {
	marks, err := s.spentMarks(ctx, first, end)
	if err != nil {
		return nil, err
	}
	for block := first; block < end; block++ {
		mark, some := marks[block]
		if !some {
			continue // nothing was asked in it
		}
		key := strconv.FormatInt(block, 10)
		kept, found, err := s.Get(ctx, kindSpent, key)
		if err != nil {
			return nil, err
		}
		rows, ofIt := bytes.CutPrefix(kept, []byte(mark))
		if !found || !ofIt || !readSpent(rows, func([]byte, *kernelwright.Spend, []byte) {}) {
			own, err := s.spentIn(ctx, ` WHERE day >= ?1 AND day < ?2 ORDER BY task_name, run`, block*spentDays, (block+1)*spentDays)
			if err != nil {
				return nil, err
			}
			rows = writeSpent(own)
			err = s.Put(ctx, kindSpent, key, append([]byte(mark), rows...))
			if trouble := Trouble(err); err != nil && (trouble == nil || errors.Is(trouble, ErrDamaged)) {
				return nil, err // without room, or where it is only read, it is summed again
			}
		}
		blocks = append(blocks, rows)
	}
	return blocks, nil
}

// spentMarks returns by block what tells its sums from others.
func (s *Store) spentMarks(ctx context.Context, first, end int64) (map[int64]string, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT day / ?3, count(*), sum(calls), sum(tokens_in), sum(tokens_out), sum(cost_usd), sum(unpriced), sum(cached), sum(written), sum(unfinished), sum(at_worst), sum(usd_at_worst)
		FROM charge_days WHERE day >= ?1 * ?3 AND day < ?2 * ?3 GROUP BY 1`, first, end, spentDays)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	marks := map[int64]string{}
	for rows.Next() {
		var block, n int64
		var spend kernelwright.Spend
		if err := rows.Scan(append([]any{&block, &n}, spendInto(&spend)...)...); err != nil {
			return nil, err
		}
		marks[block] = fmt.Sprintln(n, spend)
	}
	return marks, rows.Err()
}

func appendText(b, text []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// writeSpent writes sums of runs, sorted by task: for each its name, its figures and its
// runs. The last byte says that nothing is cut off.
func writeSpent(rows []taskRun) (b []byte) {
	for len(rows) > 0 {
		name, spend, runs, last := rows[0].name, kernelwright.Spend{}, []byte(nil), uint64(0)
		for len(rows) > 0 && bytes.Equal(rows[0].name, name) {
			if spend = spend.Add(rows[0].spend); rows[0].run != last {
				runs, last = binary.AppendUvarint(runs, rows[0].run-last), rows[0].run
			}
			rows = rows[1:]
		}
		b = appendText(b, name)
		for _, figure := range spendInto(&spend) {
			switch v := figure.(type) {
			case *float64:
				b = binary.LittleEndian.AppendUint64(b, math.Float64bits(*v))
			case *int64:
				b = binary.AppendVarint(b, *v)
			}
		}
		b = appendText(b, runs)
	}
	return append(b, 0)
}

// spentReader reads what writeSpent wrote.
type spentReader struct {
	left []byte
	bad  bool
}

func (r *spentReader) bytes(n uint64) []byte {
	if r.bad || n > uint64(len(r.left)) {
		r.bad = true
		return nil
	}
	var taken []byte
	taken, r.left = r.left[:n], r.left[n:]
	return taken
}

func (r *spentReader) text() []byte {
	size, n := binary.Uvarint(r.left)
	if n <= 0 {
		r.bad = true
		return nil
	}
	r.left = r.left[n:]
	return r.bytes(size)
}

func (r *spentReader) number() int64 {
	v, n := binary.Varint(r.left)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.left = r.left[n:]
	return v
}

// readSpent sees the sums of a block, and reports whether they are as they were written.
// What see is given is good until it returns.
func readSpent(rows []byte, see func(name []byte, spend *kernelwright.Spend, runs []byte)) bool {
	r, spend := &spentReader{left: rows}, kernelwright.Spend{}
	figures := spendInto(&spend)
	for len(r.left) > 1 {
		name := r.text()
		for _, figure := range figures {
			switch v := figure.(type) {
			case *float64:
				if b := r.bytes(8); b != nil {
					*v = math.Float64frombits(binary.LittleEndian.Uint64(b))
				}
			case *int64:
				*v = r.number()
			}
		}
		runs := r.text()
		if r.bad {
			return false
		}
		see(name, &spend, runs)
	}
	return len(r.left) == 1 && r.left[0] == 0
}

// forgetSpent drops the sums by task: a task has another name.
const forgetSpent = `DELETE FROM cache WHERE kind = '` + kindSpent + `'`
