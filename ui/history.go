package ui

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

const (
	shownRuns = 50
	shownHits = 50
	// maxParameter is how long what people look for may be, in bytes.
	maxParameter = 500
)

// historyQuery is what is looked for.
type historyQuery struct {
	Q, Operator, Device, Language, Verdict, Speedup, Model, Since, Until string
	Before                                                               int64

	speedup      float64
	since, until int64
}

// historyBody is what was found.
type historyBody struct {
	historyQuery
	Devices []kernelwright.Device
	Rows    []runRow
	Hits    []store.Hit
	Names   map[int64]string // of the tasks of hits
	Next    string           // query of the next page
	Results []string
	Langs   []kernelwright.Language
}

var results = []string{report.Faster, report.NoDifference, report.Undecided, report.NotTimed, report.NothingFaster, report.NotCertified, "queued", "running", "invalid", "declined", "failed"}

func (u *UI) history() {
	u.get("/history", "history", func(r *http.Request) (view, error) {
		b := historyBody{Results: results, Langs: kernelwright.AllLanguages()}
		var err error
		if b.historyQuery, err = readQuery(r.URL.Query()); err != nil {
			return view{}, err
		}
		if b.Devices, err = u.o.Store.Devices(r.Context()); err != nil {
			return view{}, err
		}
		if b.Q != "" {
			err = u.search(r.Context(), &b)
		} else {
			err = u.list(r.Context(), &b)
		}
		return view{Title: "History", At: "history", Body: b}, err
	})
	u.get("/compare", "compare", u.comparePage)
}

func readQuery(v url.Values) (q historyQuery, err error) {
	for name, to := range map[string]*string{
		"q": &q.Q, "operator": &q.Operator, "device": &q.Device, "language": &q.Language, "verdict": &q.Verdict, "speedup": &q.Speedup, "model": &q.Model, "since": &q.Since, "until": &q.Until,
	} {
		if *to = plain(v.Get(name)); len(*to) > maxParameter {
			return q, bad("What is looked for under "+name+" is too long.", "It has at most 500 bytes.")
		}
	}
	if q.Speedup != "" {
		if q.speedup, err = strconv.ParseFloat(q.Speedup, 64); err != nil || !(q.speedup >= 0 && q.speedup < 1e9) {
			return q, bad("The least speedup is no number.", "Write it as 1.5.")
		}
	}
	for _, day := range []struct {
		text string
		to   *int64
	}{{q.Since, &q.since}, {q.Until, &q.until}} {
		if day.text == "" {
			continue
		}
		at, err := time.Parse(time.DateOnly, day.text)
		if err != nil {
			return q, bad("A day is written as 2026-11-30.", "Choose one of the calendar.")
		}
		*day.to = at.UnixMilli()
	}
	if q.until != 0 {
		q.until += (24 * time.Hour).Milliseconds() // that day too
	}
	if text := v.Get("before"); text != "" {
		if q.Before, err = strconv.ParseInt(text, 10, 64); err != nil || q.Before < 0 {
			return q, bad("The page begins before the number of a run.", "Go back to the first page.")
		}
	}
	return q, nil
}

// plain is what somebody looks for, without what cannot be seen.
func plain(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s))
}

// next is the query of the page that begins before a run.
func (q historyQuery) next(before int64) string {
	v := url.Values{"before": {strconv.FormatInt(before, 10)}}
	for name, value := range map[string]string{"operator": q.Operator, "device": q.Device, "language": q.Language, "verdict": q.Verdict, "speedup": q.Speedup, "model": q.Model, "since": q.Since, "until": q.Until} {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v.Encode()
}

// search looks for words in sources, verdicts, feedback and messages.
func (u *UI) search(ctx context.Context, b *historyBody) error {
	var err error
	q := store.Query{Words: b.Q, Limit: shownHits}
	if slices.Contains([]string{"wrong", "cheated", "crashed", "rejected", "build_failed", "timed_out", "correct", "certified"}, b.Verdict) {
		q.Statuses = []kernelwright.Status{kernelwright.Status(b.Verdict)}
	}
	if b.Hits, err = u.o.Store.Find(ctx, q); err != nil {
		return err
	}
	var runs []int64
	for _, h := range b.Hits {
		runs = append(runs, h.RunID)
	}
	b.Names, err = u.o.Store.TaskNames(ctx, runs)
	return err
}

// list lists runs, the newest first.
func (u *UI) list(ctx context.Context, b *historyBody) error {
	f, ok := b.filter()
	for more := ok; more; {
		runs, err := u.o.Store.Runs(ctx, f)
		if err != nil {
			return err
		}
		u.shown(runs)
		for _, run := range runs {
			if f.Status == kernelwright.RunRunning && string(run.Status) != b.Verdict { // by now
				continue
			}
			if len(b.Rows) == shownRuns {
				b.Next = b.next(b.Rows[shownRuns-1].ID)
				return nil
			}
			b.Rows = append(b.Rows, newRunRow(run))
		}
		if more = len(runs) == f.Limit; more {
			f.Before = runs[len(runs)-1].ID
		}
	}
	return nil
}

// filter is what the record is asked for; ok is false where nothing can be so.
func (q historyQuery) filter() (f store.RunFilter, ok bool) {
	f = store.RunFilter{
		DeviceKey: q.Device, Coder: q.Model, SinceMS: q.since, UntilMS: q.until, Before: q.Before, Limit: shownRuns + 1,
		Operator: q.Operator, Language: kernelwright.Language(q.Language), LeastSpeedup: q.speedup,
	}
	switch q.Verdict {
	case "":
	case report.Faster, report.NoDifference, report.Undecided, report.NotTimed, report.NothingFaster, report.NotCertified:
		f.Result = kernelwright.Result(q.Verdict)
	case "queued", "running", "done", "invalid", "declined", "failed", "cancelled":
		f.Status = kernelwright.RunStatus(q.Verdict)
	case "stopped": // a run that nobody works on is recorded as running
		f.Status = kernelwright.RunRunning
	default:
		return f, false
	}
	return f, true
}

// compareBody is two runs side by side.
type compareBody struct {
	A, B  string // as they were asked for
	Both  []runBody
	Rows  []compared
	Diff  report.PageRound // of the best kernel of the second, against that of the first
	Named [2]string
}

// compared is a figure of two runs.
type compared struct {
	Name        string
	Left, Right string
	Number      bool
}

func (u *UI) comparePage(r *http.Request) (view, error) {
	b := compareBody{A: r.FormValue("a"), B: r.FormValue("b")}
	v := view{Title: "Compare two runs", At: "history"}
	if b.A == "" || b.B == "" {
		v.Body = b
		return v, nil
	}
	var both [2]report.Data
	for i, text := range []string{b.A, b.B} {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id < 1 {
			return v, bad("A run is named by its number.", "The history lists them.")
		}
		if both[i], err = u.o.Run(r.Context(), id, false); errors.Is(err, store.ErrNotFound) {
			return v, missing(fmt.Sprintf("There is no run %d.", id), "The history lists them.")
		} else if err != nil {
			return v, err
		}
		both[i].Task.Source = ""
		b.Both = append(b.Both, runBody{ID: id, Run: both[i].Run, Page: report.NewPage(both[i], roundLink(id))})
	}
	b.Rows = compareRuns(both[0], both[1])
	first, _, ok := report.Best(both[0].Rounds)
	second, _, too := report.Best(both[1].Rounds)
	if ok && too {
		first.Candidate.Source, _ = shortened(first.Candidate.Source)
		second.Candidate.Source, _ = shortened(second.Candidate.Source)
		first.Index, second.Index = 0, 1
		b.Diff = report.NewRound(report.Data{Rounds: []kernelwright.Round{first, second}}, 1, 0)
	}
	v.Body = b
	return v, nil
}

// compareRuns has the figures of two runs, one a row.
func compareRuns(a, b report.Data) (rows []compared) {
	add := func(name string, number bool, say func(report.Data, kernelwright.Verdict) string) {
		_, va, _ := report.Best(a.Rounds)
		_, vb, _ := report.Best(b.Rounds)
		rows = append(rows, compared{name, say(a, va), say(b, vb), number})
	}
	add("task", false, func(d report.Data, _ kernelwright.Verdict) string { return report.Line(d.Run.TaskName) })
	add("device", false, func(d report.Data, _ kernelwright.Verdict) string {
		return report.Line(strings.TrimSuffix(d.Run.Device+", "+d.Device.Name, ", "))
	})
	add("strategy", false, func(d report.Data, _ kernelwright.Verdict) string { return report.Line(d.Run.Strategy) })
	add("Coder", false, func(d report.Data, _ kernelwright.Verdict) string { return report.Line(d.Run.Coder) })
	add("Judge", false, func(d report.Data, _ kernelwright.Verdict) string { return report.Line(d.Run.Judge) })
	add("result", false, func(d report.Data, _ kernelwright.Verdict) string {
		return strings.ReplaceAll(report.Result(d.Run.Status, d.Rounds), "_", " ")
	})
	add("time", true, func(_ report.Data, v kernelwright.Verdict) string { return report.Milliseconds(v.CandidateMS) })
	add("speedup", true, func(_ report.Data, v kernelwright.Verdict) string { return report.Speedup(v.Speedup) })
	add("against", false, func(_ report.Data, v kernelwright.Verdict) string { return report.Against(v.Speedup) })
	add("headroom", true, func(_ report.Data, v kernelwright.Verdict) string { return report.Percent(v.Headroom) })
	add("rounds", true, func(d report.Data, _ kernelwright.Verdict) string { return strconv.Itoa(len(d.Rounds)) })
	add("rounds that were correct", true, func(d report.Data, _ kernelwright.Verdict) string {
		n := 0
		for _, r := range d.Rounds {
			if report.Counts(r).Status.OK() {
				n++
			}
		}
		return strconv.Itoa(n)
	})
	add("took", true, func(d report.Data, _ kernelwright.Verdict) string { return took(d.Run.StartedMS, d.Run.FinishedMS) })
	add("cost", true, func(d report.Data, _ kernelwright.Verdict) string { return report.Cost(d.Spend) })
	add("who did the work", false, func(_ report.Data, v kernelwright.Verdict) string { return report.Work(v.Work) })
	return rows
}
