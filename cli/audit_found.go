package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/audit"
	"github.com/kernelwright/kernelwright/report"
)

// found says what a set consists of.
func found(s audit.Set) string {
	var parts []string
	for _, layout := range slices.SortedFunc(maps.Keys(s.Layouts), func(a, b string) int { return cmp.Or(s.Layouts[b]-s.Layouts[a], strings.Compare(a, b)) }) {
		parts = append(parts, fmt.Sprintf("%d from %s", s.Layouts[layout], layout))
	}
	said := "pairs found: " + strings.Join(parts, ", ")
	total := 0
	for _, n := range s.Layouts {
		total += n
	}
	if n := s.Count(); total > n {
		said += fmt.Sprintf("; of these %d are looked at", n)
	}
	return said
}

// untriedNamed is how many pairs are named before the device is opened. Each has a line
// of its own later.
const untriedNamed = 5

// tellUntried says which pairs come to nothing for their texts alone: before a Python with
// PyTorch is installed, and before the device is opened. all says that these are all.
func tellUntried(ctx context.Context, show *progress, s audit.Set, path string) (all bool, err error) {
	untried := s.Untried(ctx)
	if ctx.Err() != nil {
		return false, errInterrupted
	}
	in := report.Audit{Audit: kernelwright.Audit{Path: path}}
	pairs, named := 0, 0
	for _, u := range untried {
		if u.IsPair() {
			pairs++
		}
	}
	if pairs > 0 {
		show.say(fmt.Sprintf("not evaluated, for their texts: %d of %d pairs", pairs, s.Count()))
	}
	for _, u := range untried {
		if named < untriedNamed || !u.IsPair() {
			row := report.AuditRow{Status: u.Status, Reason: u.Why.Error()}
			if invalid, ok := errors.AsType[*kernelwright.InvalidTaskError](u.Why); ok {
				row.Hint = invalid.Hint
			}
			show.say("  " + in.Place(u.Candidate.Label) + "  " + in.In(row))
		}
		if u.IsPair() {
			named++
		}
	}
	if pairs > untriedNamed {
		show.say(fmt.Sprintf("  and %d more, each with its reason below", pairs-untriedNamed))
	}
	return len(untried) == len(s.Pairs), nil
}
