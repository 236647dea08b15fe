package ui

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// How many rows a page has.
const (
	shownTasks   = 40
	shownLessons = 50
	shownBenches = 50
	shownPairs   = 100
)

// matrixBody is which kernel is the best of a task on a device.
type matrixBody struct {
	Name, Task string // asked for
	Devices    []kernelwright.Device
	Rows       []matrixRow
	Next       string
}

type matrixRow struct {
	kernelwright.Task
	Cells []*matrixCell // by device; nil: nothing correct
}

type matrixCell struct {
	store.Figures
	Most bool // the largest speedup of the row
}

// lessonsBody is what changes brought.
type lessonsBody struct {
	Operator, Bottleneck, Device string
	Run                          int64 // those that it was given
	Devices                      []kernelwright.Device
	Lessons                      []kernelwright.Lesson
	Next                         string
}

// benchRow is a bench in the list.
type benchRow struct {
	kernelwright.Bench
	Command string
}

// benchBody is a bench.
type benchBody struct {
	ID   int64
	Page report.BenchPage
}

// auditRow is an audit in the list.
type auditRow struct {
	kernelwright.Audit
	Pairs   int
	Command string
}

// auditBody is an audit, claimed against measured.
type auditBody struct {
	kernelwright.Audit
	Counts     []auditCount
	Rows       []report.AuditRow
	All, First int
	Next       int // the first pair of the next page; 0: there is none
}

type auditCount struct {
	Status string
	N      int
}

func (u *UI) record() {
	u.get("/tasks", "tasks", u.tasksPage)
	u.get("/lessons", "lessons", u.lessonsPage)
	u.get("/benches", "benches", func(r *http.Request) (view, error) {
		p, err := paged(r)
		if err != nil {
			return view{}, err
		}
		all, err := u.o.Store.Benches(r.Context(), store.Page{From: p, Limit: shownBenches})
		var rows []benchRow
		for _, b := range all {
			rows = append(rows, benchRow{b, strings.Join(b.Command, " ")})
		}
		return view{Title: "Benches", At: "benches", Body: list[benchRow]{rows, after(len(all), shownBenches, func() int64 { return all[len(all)-1].ID })}}, err
	})
	u.get("/benches/{bench}", "bench", u.benchPage)
	u.get("/audits", "audits", func(r *http.Request) (view, error) {
		p, err := paged(r)
		if err != nil {
			return view{}, err
		}
		all, pairs, err := u.o.Store.Audits(r.Context(), store.Page{From: p, Limit: shownBenches})
		var rows []auditRow
		for i, a := range all {
			rows = append(rows, auditRow{a, pairs[i], strings.Join(a.Command, " ")})
		}
		return view{Title: "Audits", At: "audits", Body: list[auditRow]{rows, after(len(all), shownBenches, func() int64 { return all[len(all)-1].ID })}}, err
	})
	u.get("/audits/{audit}", "audit", u.auditPage)
}

// list is a page of rows; Next is the number that the next page comes after, 0: none.
type list[T any] struct {
	Rows []T
	Next int64
}

func after(found, limit int, last func() int64) int64 {
	if found < limit {
		return 0
	}
	return last()
}

// paged reads the number that a page comes after.
func paged(r *http.Request) (int64, error) {
	text := r.FormValue("before")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, bad("A page begins before a whole number.", "Go back to the first page.")
	}
	return n, nil
}

// parameter reads a text that is looked for.
func parameter(r *http.Request, name string) (string, error) {
	text := plain(r.FormValue(name))
	if len(text) > maxParameter {
		return "", bad("What is looked for under "+name+" is too long.", "It has at most 500 bytes.")
	}
	return text, nil
}

func (u *UI) tasksPage(r *http.Request) (view, error) {
	var b matrixBody
	var err error
	if b.Name, err = parameter(r, "name"); err != nil {
		return view{}, err
	}
	if b.Task, err = parameter(r, "task"); err != nil {
		return view{}, err
	}
	from, err := parameter(r, "after")
	if err != nil {
		return view{}, err
	}
	var tasks []kernelwright.Task
	if b.Task != "" {
		one, err := u.o.Store.Task(r.Context(), b.Task)
		if err != nil {
			return view{}, err
		}
		tasks = append(tasks, one)
	} else if tasks, err = u.o.Store.Tasks(r.Context(), b.Name, from, shownTasks+1); err != nil {
		return view{}, err
	}
	if len(tasks) > shownTasks {
		tasks = tasks[:shownTasks]
		b.Next = url.Values{"name": {b.Name}, "after": {tasks[shownTasks-1].Fingerprint}}.Encode()
	}
	err = u.fillMatrix(r.Context(), &b, tasks)
	return view{Title: "Tasks and devices", At: "tasks", Body: b}, err
}

func (u *UI) fillMatrix(ctx context.Context, b *matrixBody, tasks []kernelwright.Task) error {
	prints := make([]string, len(tasks))
	for i, t := range tasks {
		prints[i] = t.Fingerprint
	}
	best, err := u.o.Store.BestFigures(ctx, prints)
	if err != nil {
		return err
	}
	all, err := u.o.Store.Devices(ctx)
	if err != nil {
		return err
	}
	for _, d := range all {
		if slices.ContainsFunc(best, func(f store.Figures) bool { return f.DeviceKey == d.Key }) {
			b.Devices = append(b.Devices, d)
		}
	}
	for _, t := range tasks {
		row := matrixRow{Task: t, Cells: make([]*matrixCell, len(b.Devices))}
		var most *matrixCell
		for _, f := range best {
			at := slices.IndexFunc(b.Devices, func(d kernelwright.Device) bool { return d.Key == f.DeviceKey })
			if f.Task != t.Fingerprint || at < 0 {
				continue
			}
			c := &matrixCell{Figures: f}
			row.Cells[at] = c
			if f.Speedup != nil && (most == nil || f.Speedup.Value > most.Speedup.Value) {
				most = c
			}
		}
		if most != nil {
			most.Most = true
		}
		b.Rows = append(b.Rows, row)
	}
	return nil
}

func (u *UI) lessonsPage(r *http.Request) (view, error) {
	var b lessonsBody
	var err error
	for name, to := range map[string]*string{"operator": &b.Operator, "bottleneck": &b.Bottleneck, "device": &b.Device} {
		if *to, err = parameter(r, name); err != nil {
			return view{}, err
		}
	}
	if b.Devices, err = u.o.Store.Devices(r.Context()); err != nil {
		return view{}, err
	}
	v := view{Title: "Lessons", At: "lessons"}
	if text := r.FormValue("run"); text != "" {
		if b.Run, err = strconv.ParseInt(text, 10, 64); err != nil || b.Run < 1 {
			return v, bad("A run is named by its number.", "The history lists them.")
		}
		b.Lessons, err = u.o.Store.RunLessons(r.Context(), b.Run)
		v.Body = b
		return v, err
	}
	f := store.LessonFilter{Bottleneck: b.Bottleneck, Limit: shownLessons}
	if b.Operator != "" {
		f.Holding = strings.Fields(b.Operator)
	}
	if b.Device != "" {
		f.Devices = []string{b.Device}
	}
	if text := r.FormValue("before"); text != "" {
		run, round, _ := strings.Cut(text, "-")
		var err, too error
		f.BeforeRun, err = strconv.ParseInt(run, 10, 64)
		f.BeforeRound, too = strconv.Atoi(round)
		if err != nil || too != nil {
			return v, bad("The page begins before no lesson.", "Go back to the first page.")
		}
	}
	if b.Lessons, err = u.o.Store.Lessons(r.Context(), f); err != nil {
		return v, err
	}
	if n := len(b.Lessons); n == shownLessons && len(f.Holding) == 0 {
		last := b.Lessons[n-1]
		b.Next = url.Values{"bottleneck": {b.Bottleneck}, "device": {b.Device}, "before": {strconv.FormatInt(last.Run, 10) + "-" + strconv.Itoa(last.Round)}}.Encode()
	}
	v.Body = b
	return v, nil
}

// finished remembers pages of what has ended, the last few: they take long to make.
type finished[T any] struct {
	mu    sync.Mutex
	order []int64
	all   map[int64]T
}

const maxFinished = 8

func (c *finished[T]) of(id int64, ended bool, make_ func() (T, error)) (T, error) {
	c.mu.Lock()
	found, known := c.all[id]
	c.mu.Unlock()
	if known {
		return found, nil
	}
	made, err := make_()
	if err != nil || !ended {
		return made, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[int64]T{}
	}
	if len(c.order) >= maxFinished {
		delete(c.all, c.order[0])
		c.order = c.order[1:]
	}
	c.all[id], c.order = made, append(c.order, id)
	return made, nil
}

func (u *UI) benchPage(r *http.Request) (view, error) {
	id, err := number(r, "bench")
	if err != nil {
		return view{}, err
	}
	known, err := u.o.Store.Bench(r.Context(), id)
	if err != nil {
		return view{}, err
	}
	page, err := u.benches.of(id, known.FinishedMS != 0, func() (report.BenchPage, error) {
		b, figures, err := u.reduced(r.Context(), known)
		if err != nil {
			return report.BenchPage{}, err
		}
		for i, run := range b.Runs {
			if run.RunID > 0 {
				b.Runs[i].Report = "/runs/" + strconv.FormatInt(run.RunID, 10)
			}
		}
		return report.NewBenchPage(b, figures), nil
	})
	return view{Title: "Bench " + strconv.FormatInt(id, 10), At: "benches", Body: benchBody{id, page}}, err
}

// reduced is what a bench came to. It is kept when it ends (report.KeepBench), and else by
// the first who asks.
func (u *UI) reduced(ctx context.Context, known kernelwright.Bench) (report.Bench, report.BenchFigures, error) {
	b, f, kept, err := report.KeptBench(ctx, u.o.Store, u.o.Version, known)
	if err != nil || kept {
		return b, f, err
	}
	if b, err = u.o.Bench(ctx, known.ID); err != nil {
		return b, f, err
	}
	f = report.Figures(b)
	return b, f, report.KeepBench(ctx, u.o.Store, u.o.Version, b, f)
}

func (u *UI) auditPage(r *http.Request) (view, error) {
	id, err := number(r, "audit")
	if err != nil {
		return view{}, err
	}
	b := auditBody{}
	if b.Audit, err = u.o.Store.Audit(r.Context(), id); err != nil {
		return view{}, err
	}
	if text := r.FormValue("from"); text != "" {
		if b.First, err = strconv.Atoi(text); err != nil || b.First < 0 {
			return view{}, bad("A page begins at a whole number.", "Go back to the first page.")
		}
	}
	counts, err := u.o.Store.AuditCounts(r.Context(), id)
	if err != nil {
		return view{}, err
	}
	err = u.o.Store.AuditPairsFrom(r.Context(), id, b.First, shownPairs, func(p kernelwright.AuditPair) error {
		b.Rows = append(b.Rows, report.NewAuditRow(p))
		return nil
	})
	if err != nil {
		return view{}, err
	}
	for status, n := range counts {
		b.Counts = append(b.Counts, auditCount{string(status), n})
		b.All += n
	}
	slices.SortFunc(b.Counts, func(x, y auditCount) int {
		if x.N != y.N {
			return y.N - x.N
		}
		return strings.Compare(x.Status, y.Status)
	})
	if b.First+shownPairs < b.All {
		b.Next = b.First + shownPairs
	}
	return view{Title: "Audit " + strconv.FormatInt(id, 10), At: "audits", Body: b}, nil
}
