package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright/report"
)

type historySearchCmd struct {
	Words []string `arg:"" help:"Words that must all occur; word* matches what begins so."`
	Limit int      `help:"At most so many." default:"50"`
}

type hit struct {
	Kind    string `json:"kind"`
	Task    string `json:"task"`
	Run     int64  `json:"run,omitempty"`
	Round   int    `json:"round"`
	Excerpt string `json:"excerpt"`
}

// Run searches every recorded text.
func (c historySearchCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	query := strings.Join(c.Words, " ")
	hits, err := r.store.Search(a.ctx, query, c.Limit)
	if err != nil {
		return err
	}
	if len(hits) == 0 {
		return notFound(fmt.Sprintf("nothing recorded holds %q", query), "all words must occur; end one with * to match its beginning")
	}
	list := make([]hit, len(hits))
	for i, h := range hits {
		list[i] = hit{h.Kind, h.Task, h.RunID, h.Round, h.Excerpt}
	}
	if a.json {
		return a.printJSON(map[string]any{"hits": list})
	}
	rows := [][]string{{"run", "round", "what", "where it stands"}}
	for _, h := range list {
		run, round := "–", "–"
		if h.Run > 0 {
			run, round = strconv.FormatInt(h.Run, 10), strconv.Itoa(h.Round)
		}
		rows = append(rows, []string{run, round, h.Kind, report.Line(h.Excerpt)})
	}
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{2: true, 3: true}))
}
