package report

import (
	"fmt"
	"strings"
)

// DiffLine is one line of a difference. Op is ' ', '-', '+', or '@' for a gap
// in what is the same; Old and New count from 1 and are 0 where the line is
// not in that text.
type DiffLine struct {
	Op   rune
	Old  int
	New  int
	Text string
}

// diffContext is how many equal lines are kept round a change, as in diff -u.
const diffContext = 3

// diffCells bounds the table of the comparison: 16 MiB. Past it the texts are
// shown as one whole replaced by another, which is right, if less readable.
const diffCells = 4 << 20

// Diff compares two texts line by line. No lines: they are the same.
func Diff(old, new string) []DiffLine {
	if old == new {
		return nil
	}
	return fold(compare(splitLines(old), splitLines(new)))
}

func splitLines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// compare is the longest common subsequence, after what begins and ends alike
// has been set aside.
func compare(a, b []string) []DiffLine {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	x, y := a[head:len(a)-tail], b[head:len(b)-tail]
	var out []DiffLine
	for i := range head {
		out = append(out, DiffLine{' ', i + 1, i + 1, a[i]})
	}
	i, j := 0, 0
	if len(x)*len(y) <= diffCells {
		w := len(y) + 1
		longest := make([]int32, (len(x)+1)*w)
		for p := len(x) - 1; p >= 0; p-- {
			for q := len(y) - 1; q >= 0; q-- {
				if x[p] == y[q] {
					longest[p*w+q] = longest[(p+1)*w+q+1] + 1
				} else {
					longest[p*w+q] = max(longest[(p+1)*w+q], longest[p*w+q+1])
				}
			}
		}
		for i < len(x) && j < len(y) {
			switch {
			case x[i] == y[j]:
				out = append(out, DiffLine{' ', head + i + 1, head + j + 1, x[i]})
				i++
				j++
			case longest[(i+1)*w+j] >= longest[i*w+j+1]:
				out = append(out, DiffLine{'-', head + i + 1, 0, x[i]})
				i++
			default:
				out = append(out, DiffLine{'+', 0, head + j + 1, y[j]})
				j++
			}
		}
	}
	for ; i < len(x); i++ {
		out = append(out, DiffLine{'-', head + i + 1, 0, x[i]})
	}
	for ; j < len(y); j++ {
		out = append(out, DiffLine{'+', 0, head + j + 1, y[j]})
	}
	for k := tail; k > 0; k-- {
		out = append(out, DiffLine{' ', len(a) - k + 1, len(b) - k + 1, a[len(a)-k]})
	}
	return out
}

// fold leaves out equal lines far from any change.
func fold(lines []DiffLine) []DiffLine {
	keep := make([]bool, len(lines))
	for i, l := range lines {
		if l.Op == ' ' {
			continue
		}
		for k := max(0, i-diffContext); k <= min(len(lines)-1, i+diffContext); k++ {
			keep[k] = true
		}
	}
	var out []DiffLine
	for i := 0; i < len(lines); i++ {
		if keep[i] {
			out = append(out, lines[i])
			continue
		}
		first := i
		for i+1 < len(lines) && !keep[i+1] {
			i++
		}
		n := i - first + 1
		text := "1 line the same"
		if n > 1 {
			text = fmt.Sprintf("%d lines the same", n)
		}
		out = append(out, DiffLine{Op: '@', Text: text})
	}
	return out
}
