package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/trainer/policies"
)

type policyShowCmd struct {
	Policy string `arg:"" optional:"" default:"current" help:"Its name: v3, or current."`
}

// Help is shown below the flags.
func (policyShowCmd) Help() string {
	return "Every byte of its folder is held against what was recorded: a policy that was changed by hand is not served."
}

// turn is a promotion or a rollback.
type turn struct {
	Kind      string `json:"kind"` // "promotion" or "rollback"
	Policy    string `json:"policy"`
	Before    string `json:"before"` // that served until then
	Gate      int64  `json:"gate" unknown:"0"`
	Reason    string `json:"reason"`
	CreatedMS int64  `json:"created" time:"ms"`
}

// policyPage is all that is said of a policy.
type policyPage struct {
	policyRow
	Lineage []string   `json:"lineage"` // from this one to what was there first
	Changed string     `json:"changed"` // what is other than it was recorded
	Gates   []gatePage `json:"gates"`
	Turns   []turn     `json:"promotions"`
}

// Run shows a policy.
func (c policyShowCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	p, err := r.policies.Lookup(a.ctx, c.Policy)
	if err != nil {
		return err
	}
	page, err := r.policyPage(a.ctx, p)
	if err != nil {
		return cutShort(a.ctx, err)
	}
	if a.json {
		return a.printJSON(page)
	}
	return page.print(a)
}

func (r *room) policyPage(ctx context.Context, p policies.Policy) (policyPage, error) {
	page := policyPage{Gates: []gatePage{}, Turns: []turn{}}
	var err error
	if page.policyRow, err = r.policyRow(ctx, p); err != nil {
		return page, err
	}
	if page.Lineage, err = r.policies.Lineage(ctx, p); err != nil {
		return page, err
	}
	if p.RemovedMS == 0 {
		changed := new(policies.ChangedError)
		if err := r.policies.Check(ctx, p); errors.As(err, &changed) {
			page.Changed = changed.What
		} else if err != nil {
			return page, err
		}
	}
	if page.Gates, err = gatesOf(ctx, r.store, p); err != nil {
		return page, err
	}
	history, err := r.policies.History(ctx)
	if err != nil {
		return page, err
	}
	for i, h := range history {
		t := turn{Kind: "promotion", Policy: fmt.Sprintf("v%d", h.Policy), Gate: h.Gate, Reason: h.Reason, CreatedMS: h.CreatedMS}
		if h.Rollback {
			t.Kind = "rollback"
		}
		if i > 0 {
			t.Before = fmt.Sprintf("v%d", history[i-1].Policy)
		}
		if slices.Contains([]string{t.Policy, t.Before}, p.Name()) {
			page.Turns = append(page.Turns, t)
		}
	}
	return page, nil
}

func (p policyPage) print(a *app) error {
	name := p.Name
	if state := p.state(); state != "" {
		name += " (" + state + ")"
	}
	folder := "as it was recorded: " + short(p.Folder)
	switch {
	case p.Changed != "":
		folder = fmt.Sprintf("changed, so it is not served: %s: %s", short(p.Folder), report.Line(p.Changed))
	case p.RemovedMS != 0:
		folder = "removed " + clock(p.RemovedMS)
	}
	rows := [][]string{
		{"policy", name}, {"lineage", report.Line(strings.Join(p.Lineage, " ← "))}, {"from", report.Line(p.origin())}, {"recorded", clock(p.CreatedMS)},
		{"licence", dash(report.Line(p.License))}, {"size", report.ByteSize(p.Bytes)}, {"digest", p.Digest}, {"folder", folder},
	}
	if err := report.Columns(a.stdout, rows, map[int]bool{0: true, 1: true}); err != nil {
		return ignoreClosed(err)
	}
	said := "\nit has never served\n"
	if len(p.Turns) > 0 {
		said = "\n"
		for _, t := range p.Turns {
			said += t.line()
		}
	}
	for _, g := range p.Gates {
		said += "\n" + report.Clean(g.page)
	}
	return a.printf("%s", said)
}

// clock is a time as people write it.
func clock(ms int64) string { return time.UnixMilli(ms).Format("2006-01-02 15:04") }

// line says a turn to people.
func (t turn) line() string {
	by := "by a person"
	if t.Gate > 0 {
		by = fmt.Sprintf("by gate %d", t.Gate)
	}
	what := t.Policy + " promoted"
	if t.Kind == "rollback" {
		what = "rolled back to " + t.Policy
	}
	if t.Before != "" {
		by = fmt.Sprintf("in the place of %s, %s", t.Before, by)
	}
	return fmt.Sprintf("%s  %s %s: %s\n", clock(t.CreatedMS), what, by, report.Line(t.Reason))
}
