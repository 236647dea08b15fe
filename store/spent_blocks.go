package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
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

// taskSum is what was spent on a task. Its runs are lists of numbers, as uvarints of
// differences; a run may stand in several.
type taskSum struct {
	kernelwright.Spend
	runs [][]byte
}

type taskSums map[string]*taskSum

func (t taskSums) add(name string, spend kernelwright.Spend, runs []byte) {
	of := t[name]
	if of == nil {
		of = &taskSum{}
		t[name] = of
	}
	of.Spend = of.Add(spend)
	of.runs = append(of.runs, runs)
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
	sums := taskSums{}
	if first >= end {
		first, end = 0, 0
	} else if err := s.spentBlocks(ctx, sums, first, end); err != nil {
		return nil, err
	}
	const live = ` UNION ALL SELECT task_name, run, ` + spendColumns + ` FROM charges JOIN runs ON runs.id = charges.run WHERE `
	err := s.spentIn(ctx, sums, ` WHERE day >= ?2 / 86400000 AND NOT (day >= ?3 AND day < ?4)`+live+`ended >= max(?1, `+summedUntil+`) GROUP BY 1, 2
		`+live+`ended >= ?1 AND ended < min(?2, `+summedUntil+`) GROUP BY 1, 2`, sinceMS, nextDay(sinceMS), first*spentDays, end*spentDays)
	if err != nil {
		return nil, err
	}
	all := make([]TaskSpending, 0, len(sums))
	for name, of := range sums {
		all = append(all, TaskSpending{TaskName: name, Spend: of.Spend})
	}
	slices.SortFunc(all, func(a, b TaskSpending) int {
		return cmp.Or(cmp.Compare(b.USD, a.USD), cmp.Compare(b.TokensIn+b.TokensOut, a.TokensIn+a.TokensOut), cmp.Compare(a.TaskName, b.TaskName))
	})
	all = all[:min(len(all), limit)]
	for i := range all {
		if all[i].Runs, err = sums[all[i].TaskName].distinct(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// distinct counts the runs.
func (t *taskSum) distinct() (int64, error) {
	seen := map[uint64]bool{}
	for _, list := range t.runs {
		for run := uint64(0); len(list) > 0; {
			apart, n := binary.Uvarint(list)
			if n <= 0 {
				return 0, errSpent
			}
			run, list = run+apart, list[n:]
			seen[run] = true
		}
	}
	return int64(len(seen)), nil
}

// spentIn adds the sums by run that a condition on charge_runs gives.
func (s *Store) spentIn(ctx context.Context, sums taskSums, where string, args ...any) error {
	rows, err := s.read.QueryContext(ctx, `SELECT task_name, run, `+spendNames+` FROM charge_runs`+where, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var run uint64
		var spend kernelwright.Spend
		if err := rows.Scan(append([]any{&name, &run}, spendInto(&spend)...)...); err != nil {
			return err
		}
		sums.add(name, spend, binary.AppendUvarint(nil, run))
	}
	return rows.Err()
}

// spentBlocks adds what was spent in blocks of days. One that is not kept, or that is of
// other sums than those of its days, is summed and kept.
func (s *Store) spentBlocks(ctx context.Context, sums taskSums, first, end int64) error {
	marks, err := s.spentMarks(ctx, first, end)
	if err != nil {
		return err
	}
	for block := first; block < end; block++ {
		mark, some := marks[block]
		if !some {
			continue // nothing was asked in it
		}
		key := strconv.FormatInt(block, 10)
		kept, found, err := s.Get(ctx, kindSpent, key)
		if err != nil {
			return err
		}
		if found && readSpent(kept, mark, sums.add) == nil {
			continue
		}
		own := taskSums{}
		if err := s.spentIn(ctx, own, ` WHERE day >= ?1 AND day < ?2 ORDER BY run`, block*spentDays, (block+1)*spentDays); err != nil {
			return err
		}
		text := writeSpent(own, mark)
		err = s.Put(ctx, kindSpent, key, text)
		if trouble := Trouble(err); err != nil && (trouble == nil || errors.Is(trouble, ErrDamaged)) {
			return err // without room, or where it is only read, it is summed again
		}
		if err := readSpent(text, mark, sums.add); err != nil {
			return err
		}
	}
	return nil
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
		marks[block] = fmt.Sprint(n, spend)
	}
	return marks, rows.Err()
}

var errSpent = errors.New("sums of what was spent are not as they were written")

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// writeSpent writes sums: the mark, and for each task its name, its figures and its runs.
func writeSpent(sums taskSums, mark string) []byte {
	b := appendText(nil, mark)
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		of := sums[name]
		b = appendText(b, name)
		for _, figure := range spendInto(&of.Spend) {
			switch v := figure.(type) {
			case *float64:
				b = binary.LittleEndian.AppendUint64(b, math.Float64bits(*v))
			case *int64:
				b = binary.AppendVarint(b, *v)
			case *int:
				b = binary.AppendVarint(b, int64(*v))
			}
		}
		var runs []byte
		last := uint64(0)
		for _, list := range of.runs { // in their order, each of one run
			run, _ := binary.Uvarint(list)
			if run != last {
				runs, last = binary.AppendUvarint(runs, run-last), run
			}
		}
		b = appendText(b, string(runs))
	}
	return b
}

// spentReader reads what writeSpent wrote.
type spentReader struct {
	left []byte
	err  error
}

func (r *spentReader) bytes(n uint64) []byte {
	if r.err != nil || n > uint64(len(r.left)) {
		r.err = errSpent
		return nil
	}
	var taken []byte
	taken, r.left = r.left[:n], r.left[n:]
	return taken
}

func (r *spentReader) text() []byte {
	size, n := binary.Uvarint(r.left)
	if n <= 0 {
		r.err = errSpent
		return nil
	}
	r.left = r.left[n:]
	return r.bytes(size)
}

func (r *spentReader) number() int64 {
	v, n := binary.Varint(r.left)
	if n <= 0 {
		r.err = errSpent
		return 0
	}
	r.left = r.left[n:]
	return v
}

// readSpent gives the sums of a block, unless they are of another mark.
func readSpent(text []byte, mark string, add func(name string, spend kernelwright.Spend, runs []byte)) error {
	r := &spentReader{left: text}
	if string(r.text()) != mark {
		return errSpent
	}
	type row struct {
		name  string
		spend kernelwright.Spend
		runs  []byte
	}
	var all []row
	for len(r.left) > 0 && r.err == nil {
		of := row{name: string(r.text())}
		for _, figure := range spendInto(&of.spend) {
			switch v := figure.(type) {
			case *float64:
				if b := r.bytes(8); b != nil {
					*v = math.Float64frombits(binary.LittleEndian.Uint64(b))
				}
			case *int64:
				*v = r.number()
			case *int:
				*v = int(r.number())
			}
		}
		of.runs = r.text()
		all = append(all, of)
	}
	if r.err != nil {
		return r.err
	}
	for _, of := range all {
		add(of.name, of.spend, of.runs)
	}
	return nil
}

// forgetSpent drops the sums by task: a task has another name.
const forgetSpent = `DELETE FROM cache WHERE kind = '` + kindSpent + `'`
