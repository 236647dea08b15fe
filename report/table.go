package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
)

// Table writes one row a run: what a command ends with.
func Table(w io.Writer, rows []Summary) error {
	head := []string{"task", "rounds", "verdict", "candidate", "eager", "compile", "max-autotune", "speedup", "against", "headroom"}
	left := map[int]bool{0: true, 2: true, 8: true, 10: true, 11: true}
	priced := slices.ContainsFunc(rows, func(s Summary) bool { return s.Spend != nil })
	if priced {
		head, left = append(head, "cost"), map[int]bool{0: true, 2: true, 8: true, 11: true, 12: true}
	}
	cells := [][]string{append(head, "report", "kernel")}
	var notes []string
	for _, s := range rows {
		status := standing(s.Status, s.Level)
		if s.Result == NothingFaster {
			status = standing(s.Result, "")
		}
		if len(s.Flags) > 0 {
			status += " !"
		}
		cells = append(cells, []string{
			Line(s.Task), fmt.Sprint(s.Rounds), status, Milliseconds(s.MS),
			Milliseconds(s.Baseline["eager"]), Milliseconds(s.Baseline["compile"]), Milliseconds(s.Baseline["max-autotune"]),
			Speedup(s.Speedup), Against(s.Speedup), Percent(s.Headroom),
		})
		last := &cells[len(cells)-1]
		if priced {
			var spend kernelwright.Spend
			if s.Spend != nil {
				spend = *s.Spend
				notes = append(notes, Line(s.Task)+": language models: "+Spent(spend))
			}
			*last = append(*last, Cost(spend))
		}
		*last = append(*last, cmp.Or(Line(s.Report), "–"), cmp.Or(Line(s.Kernel), "–"))
		if s.Speedup.Slower() && s.Result != NothingFaster {
			notes = append(notes, fmt.Sprintf("%s: slower than %s, which is the better choice", Line(s.Task), Line(s.Speedup.Against)))
		}
		for _, n := range s.Notes {
			notes = append(notes, Line(s.Task)+": "+Line(n))
		}
		for _, f := range s.Flags {
			notes = append(notes, fmt.Sprintf("! %s: %s", Line(s.Task), FlagText(f)))
		}
		// With a kernel that is kept it tells what was cut short.
		if s.Reason != "" {
			note := Line(s.Task) + ": " + Line(s.Reason)
			if s.Hint != "" {
				note = strings.TrimSuffix(note, ".") + " (" + Line(s.Hint) + ")"
			}
			notes = append(notes, note)
		}
	}
	if err := Columns(w, cells, left); err != nil {
		return err
	}
	speedups := make([]*kernelwright.Speedup, len(rows))
	for i, s := range rows {
		speedups[i] = s.Speedup
	}
	notes = append(notes, Legend(speedups...)...)
	if len(notes) > 0 {
		if _, err := fmt.Fprintln(w, "\n"+strings.Join(notes, "\n")); err != nil {
			return err
		}
	}
	return nil
}

// Columns writes rows aligned: the named columns to the left, numbers to the
// right. The last column is not padded.
func Columns(w io.Writer, rows [][]string, left map[int]bool) error {
	var width []int
	for _, r := range rows {
		for i, c := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for _, r := range rows {
		var line strings.Builder
		for i, c := range r {
			if i > 0 {
				line.WriteString("  ")
			}
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if left[i] {
				line.WriteString(c + pad)
			} else {
				line.WriteString(pad + c)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
