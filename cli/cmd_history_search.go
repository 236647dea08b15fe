package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type historySearchCmd struct {
	Words  []string `arg:"" optional:"" help:"Words that must all occur; word* matches what begins so."`
	Status []string `help:"Only rounds whose verdict is one of these: rejected, build_failed, crashed, timed_out, wrong, cheated, correct, certified. Without words all of them." placeholder:"STATUS" sep:","`
	Failed bool     `help:"Only rounds whose verdict is neither correct nor certified, or whose certification failed."`
	Limit  int      `help:"At most so many." default:"50"`
}

// failures are the verdicts of candidates that failed; all are what a round can have.
var (
	failures = []kernelwright.Status{kernelwright.Rejected, kernelwright.BuildFailed, kernelwright.Crashed, kernelwright.TimedOut, kernelwright.Wrong, kernelwright.Cheated}
	verdicts = append(failures[:len(failures):len(failures)], kernelwright.Correct, kernelwright.Certified)
)

type hit struct {
	Kind          string              `json:"kind"`
	Task          string              `json:"task,omitempty"`
	Run           int64               `json:"run,omitempty"`
	Round         *int                `json:"round,omitempty"`         // absent for a task and a run
	Status        kernelwright.Status `json:"status,omitempty"`        // of the round's verdict
	Certification kernelwright.Status `json:"certification,omitempty"` // of the verdict that did not certify it
	Excerpt       string              `json:"excerpt"`
}

func newHit(h store.Hit) hit {
	row := hit{Kind: h.Kind, Task: h.Task, Run: h.RunID, Status: h.Status, Certification: h.Refused, Excerpt: h.Excerpt}
	if h.Round >= 0 {
		row.Round = &h.Round
	}
	return row
}

// Run searches every recorded text, or lists rounds by their status.
func (c historySearchCmd) Run(a *app) (err error) {
	query, err := c.query()
	if err != nil {
		return err
	}
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	hits, err := r.store.Find(a.ctx, query)
	if err != nil {
		return err
	}
	switch {
	case len(hits) == 0 && query.Words == "":
		return notFound("no round with such a verdict is recorded", "`kernelwright history ls` lists the runs")
	case len(hits) == 0:
		return notFound(fmt.Sprintf("nothing recorded holds %q", query.Words), "all words must occur; end one with * to match its beginning")
	}
	list := make([]hit, len(hits))
	for i, h := range hits {
		list[i] = newHit(h)
	}
	if a.json {
		return a.printJSON(map[string]any{"hits": list})
	}
	rows := [][]string{{"run", "round", "verdict", "what", "where it stands"}}
	for _, h := range list {
		run, round, verdict := "–", "–", "–"
		if h.Run > 0 {
			run = strconv.FormatInt(h.Run, 10)
		}
		if h.Round != nil {
			round = strconv.Itoa(*h.Round)
		}
		if h.Status != "" {
			verdict = words(h.Status)
		}
		if h.Certification != "" {
			verdict += ", certification: " + words(h.Certification)
		}
		rows = append(rows, []string{run, round, verdict, h.Kind, report.Line(h.Excerpt)})
	}
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{2: true, 3: true, 4: true}))
}

func (c historySearchCmd) query() (store.Query, error) {
	q := store.Query{Words: strings.Join(c.Words, " "), Limit: c.Limit}
	for _, word := range c.Status {
		known := false
		for _, s := range verdicts {
			known = known || word == string(s)
		}
		if !known {
			return q, usage(fmt.Sprintf("there is no verdict %q", word), "it is one of "+joinStatuses(verdicts))
		}
		q.Statuses = append(q.Statuses, kernelwright.Status(word))
	}
	if c.Failed {
		q.Statuses = append(q.Statuses, failures...)
	}
	if strings.Trim(q.Words, "* ") == "" && len(q.Statuses) == 0 {
		return q, usage("there is nothing to search for", "give words, --status or --failed")
	}
	return q, nil
}

func joinStatuses(list []kernelwright.Status) string {
	words := make([]string, len(list))
	for i, s := range list {
		words[i] = string(s)
	}
	return strings.Join(words, ", ")
}
