package report

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/kernelwright/kernelwright"
)

// Clean makes a foreign text safe to show on a terminal and honest to read:
// control characters, which can move the cursor, and format characters, which
// can reorder what is read or hide in it, are shown by number. Line feeds and
// tabs stay.
func Clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.ReplaceAll(s, "\r\n", "\n")
	if !strings.ContainsFunc(s, hidden) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hidden(r) {
			fmt.Fprintf(&b, "⟨U+%04X⟩", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func hidden(r rune) bool {
	if r < utf8.RuneSelf {
		return (r < ' ' && r != '\n' && r != '\t') || r == '\x7f'
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// CleanJSON makes JSON safe to show on a terminal, with the same meaning: what
// Clean shows by number and JSON leaves as it is becomes an escape.
func CleanJSON(b []byte) []byte {
	plain := func(r rune) bool { return r >= 0x7f && hidden(r) }
	if !bytes.ContainsFunc(b, plain) {
		return b
	}
	out := make([]byte, 0, len(b)+16)
	for _, r := range string(b) { // such a rune stands in strings alone
		if !plain(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return out
}

// Line is Clean on one line.
func Line(s string) string {
	return strings.Join(strings.Fields(Clean(s)), " ")
}

// Milliseconds writes a time with three digits that mean something.
func Milliseconds(ms float64) string {
	switch {
	case math.IsNaN(ms) || ms <= 0:
		return "–"
	case ms < 0.1:
		return digits(ms*1000) + " µs"
	case ms < 10000:
		return digits(ms) + " ms"
	default:
		return digits(ms/1000) + " s"
	}
}

// digits keeps three significant ones, and never an exponent.
func digits(v float64) string {
	a := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return strconv.FormatFloat(v, 'g', 3, 64)
	case a == 0:
		return "0"
	case a >= 1e15 || a < 1e-6:
		return strconv.FormatFloat(v, 'e', 2, 64)
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		places := 2 - int(math.Floor(math.Log10(a)))
		return strconv.FormatFloat(v, 'f', places, 64)
	}
}

func times(v float64) string { return fmt.Sprintf("%.2f×", v) }

func interval(s kernelwright.Speedup) string {
	return fmt.Sprintf("95 %% interval %.2f to %.2f", s.Low, s.High)
}

// Speedup writes a speedup with its interval: "2.10× [2.02, 2.19]". One that
// may be none at all is marked: "≈ 1.03× [0.98, 1.09]", and one that says nothing:
// "? 1.30× [0.50, 1.90]".
func Speedup(s *kernelwright.Speedup) string {
	if s == nil {
		return "–"
	}
	mark := ""
	switch {
	case s.Vague():
		mark = "? "
	case !decided(s):
		mark = "≈ "
	}
	return fmt.Sprintf("%s%s [%.2f, %.2f]", mark, times(s.Value), s.Low, s.High)
}

// decided reports whether a speedup's interval leaves 1 out.
func decided(s *kernelwright.Speedup) bool { return s == nil || s.Low > 1 || s.High < 1 }

// Against writes what a speedup is held against.
func Against(s *kernelwright.Speedup) string {
	if s == nil {
		return "–"
	}
	return Line(s.Against)
}

// Legend explains the marks of a table that shows these speedups.
func Legend(speedups ...*kernelwright.Speedup) []string {
	if !slices.ContainsFunc(speedups, func(s *kernelwright.Speedup) bool { return s != nil }) {
		return nil
	}
	return append([]string{"headroom: the share of the kernel's time that the roofline needs; 100 % is as fast as this hardware can be"}, Marks(speedups...)...)
}

// Marks explains the marks before these speedups.
func Marks(speedups ...*kernelwright.Speedup) (lines []string) {
	if slices.ContainsFunc(speedups, func(s *kernelwright.Speedup) bool { return !decided(s) && !s.Vague() }) {
		lines = append(lines, "≈: no measurable difference, the 95 % interval holds 1")
	}
	if slices.ContainsFunc(speedups, func(s *kernelwright.Speedup) bool { return s.Vague() }) {
		lines = append(lines, "?: the 95 % interval is too wide to tell: the machine was not quiet")
	}
	return lines
}

// Percent writes a share: "62 %".
func Percent(v float64) string {
	if v <= 0 || math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*v)
}

func shape(t kernelwright.TensorSpec) string {
	parts := make([]string, len(t.Shape))
	for i, n := range t.Shape {
		parts[i] = strconv.Itoa(n)
	}
	s := Clean(t.DType) + "[" + strings.Join(parts, ", ") + "]"
	if t.Name != "" {
		s = Line(t.Name) + ": " + s
	}
	return s
}

// ByteSize says a number of bytes.
func ByteSize(n int64) string {
	if n <= 0 {
		return "–"
	}
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return digits(v) + " " + units[i]
}

func count(n int64) string {
	if n <= 0 {
		return "–"
	}
	v, units := float64(n), []string{"", " k", " M", " G", " T"}
	i := 0
	for v >= 1000 && i < len(units)-1 {
		v /= 1000
		i++
	}
	return digits(v) + units[i]
}
