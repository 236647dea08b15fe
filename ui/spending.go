package ui

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/store"
)

const (
	defaultDays = 30
	maxDays     = 3660
	shownModels = 40
)

// costsBody is what was asked of language models.
type costsBody struct {
	Days   int
	All    kernelwright.Spend
	Today  kernelwright.Spend
	Left   []budgetLeft
	Chart  *plot
	Unit   string
	ByDay  []store.Spending
	Models []modelSpend
	Tasks  []store.TaskSpending
}

type modelSpend struct {
	Model string
	kernelwright.Spend
}

// budgetLeft is what today may still take.
type budgetLeft struct {
	Name, Used, Of, Left string
	Share                float64
}

func (u *UI) spending() {
	u.get("/costs", "costs", u.costsPage)
}

func (u *UI) costsPage(r *http.Request) (view, error) {
	b := costsBody{Days: defaultDays}
	var err error
	if text := r.FormValue("days"); text != "" {
		if b.Days, err = strconv.Atoi(text); err != nil || b.Days < 1 || b.Days > maxDays {
			return view{}, bad("The number of days is a whole number from 1 to 3660.", "Choose one of the list.")
		}
	}
	today := time.Now().UTC().Truncate(24 * time.Hour)
	since := today.AddDate(0, 0, 1-b.Days).UnixMilli()
	var byTask error
	var tasks sync.WaitGroup
	tasks.Go(func() { b.Tasks, byTask = u.o.Store.SpendingByTask(r.Context(), since, shownModels) })
	b.ByDay, err = u.o.Store.Spending(r.Context(), since)
	tasks.Wait()
	if err = errors.Join(err, byTask); err != nil {
		return view{}, err
	}
	models, days := map[string]kernelwright.Spend{}, map[int64]kernelwright.Spend{}
	for _, s := range b.ByDay {
		b.All = b.All.Add(s.Spend)
		models[s.Model], days[s.DayMS] = models[s.Model].Add(s.Spend), days[s.DayMS].Add(s.Spend)
	}
	b.Today = days[today.UnixMilli()]
	for model, spend := range models {
		b.Models = append(b.Models, modelSpend{model, spend})
	}
	slices.SortFunc(b.Models, func(x, y modelSpend) int {
		switch {
		case x.USD != y.USD && x.USD > y.USD, x.USD == y.USD && x.TokensIn+x.TokensOut > y.TokensIn+y.TokensOut:
			return -1
		case x.USD == y.USD && x.TokensIn+x.TokensOut == y.TokensIn+y.TokensOut:
			return 0
		}
		return 1
	})
	b.Models = b.Models[:min(len(b.Models), shownModels)]
	if len(b.ByDay) > 0 {
		b.chart(today, days)
	}
	b.ByDay = b.ByDay[:min(len(b.ByDay), 100)]
	b.budget(u.o.Budget)
	return view{Title: "Costs", At: "costs", Body: b}, nil
}

// chart draws dollars by day, or tokens where no price is known.
func (b *costsBody) chart(today time.Time, days map[int64]kernelwright.Spend) {
	first := today
	for ms := range days {
		if at := time.UnixMilli(ms).UTC(); at.Before(first) {
			first = at
		}
	}
	var labels []string
	var values []float64
	amount, say := func(s kernelwright.Spend) float64 { return s.USD }, func(v float64) string { return fmt.Sprintf("$%.2f", v) }
	b.Unit = "dollars"
	if b.All.USD == 0 {
		amount, b.Unit = func(s kernelwright.Spend) float64 { return float64(s.TokensIn + s.TokensOut) }, "tokens"
		say = func(v float64) string { return fmt.Sprintf("%.0f", v) }
	}
	for at := first; !at.After(today); at = at.AddDate(0, 0, 1) {
		labels, values = append(labels, at.Format("01-02")), append(values, amount(days[at.UnixMilli()]))
	}
	p := barPlot(b.Unit+" by day", labels, values, say)
	b.Chart = &p
}

func (b *costsBody) budget(of Budget) {
	add := func(name string, used, most float64, say func(float64) string) {
		if most > 0 {
			b.Left = append(b.Left, budgetLeft{name, say(used), say(most), say(max(most-used, 0)), min(used/most, 1)})
		}
	}
	whole := func(v float64) string { return strconv.FormatInt(int64(v), 10) }
	add("dollars", b.Today.USD, of.USD, func(v float64) string { return fmt.Sprintf("$%.2f", v) })
	add("tokens", float64(b.Today.TokensIn+b.Today.TokensOut), float64(of.Tokens), whole)
	add("calls", float64(b.Today.Calls), float64(of.Calls), whole)
}
