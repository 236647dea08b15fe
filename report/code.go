package report

import (
	"fmt"
	"strings"
)

// maxCode bounds a line of foreign code, in runes.
const maxCode = 160

// Code returns a line of a text, counted from 1, as it may be shown, and the one
// before it, where something that a compiler misses mostly is. None for a line
// that is not there.
func Code(source string, line int) []string {
	lines := strings.Split(strings.ReplaceAll(source, "\r\n", "\n"), "\n")
	if line < 1 || line > len(lines) || strings.TrimSpace(lines[line-1]) == "" {
		return nil
	}
	var shown []string
	for n := max(line-1, 1); n <= line; n++ {
		mark := " "
		if n == line {
			mark = ">"
		} else if strings.TrimSpace(lines[n-1]) == "" {
			continue
		}
		text := []rune(strings.ReplaceAll(Clean(strings.TrimRight(lines[n-1], " \t\r")), "\t", "    "))
		if len(text) > maxCode {
			text = append(text[:maxCode-1], '…')
		}
		shown = append(shown, fmt.Sprintf("%s %4d | %s", mark, n, string(text)))
	}
	return shown
}
