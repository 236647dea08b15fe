package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

// maxCompilerErrors is how many errors of a compiler are shown.
const maxCompilerErrors = 8

// candidateText is what a verdict is on: the path as it was named and the text that
// lines count in, which of a work folder is that of all its files.
type candidateText struct {
	path, source string
}

// writeErrors shows a compiler's errors: file and line, the words, the code.
func writeErrors(b *strings.Builder, indent string, errors []kernelwright.Diagnostic, of candidateText) {
	for i, d := range errors {
		if i == maxCompilerErrors {
			fmt.Fprintf(b, "%sand %d more errors\n", indent, len(errors)-i)
			return
		}
		switch place := of.place(d.Line); {
		case d.Line < 1:
			fmt.Fprintf(b, "%s%s\n", indent, report.Line(d.Message))
		case place == "":
			fmt.Fprintf(b, "%sline %d: %s\n", indent, d.Line, report.Line(d.Message))
		default:
			fmt.Fprintf(b, "%s%s: %s\n", indent, place, report.Line(d.Message))
		}
		if i > 0 && errors[i-1].Line == d.Line {
			continue // its code was shown
		}
		for _, line := range report.Code(of.source, d.Line) {
			fmt.Fprintf(b, "%s  %s\n", indent, line)
		}
	}
}

// place names a line as editors read it: "softmax.py:17". Of a work folder it is
// the file that has the line, where one file has it once; else it is empty.
func (t candidateText) place(line int) string {
	if t.path == "" || line < 1 {
		return ""
	}
	info, err := os.Stat(t.path)
	if err != nil || !info.IsDir() {
		return fmt.Sprintf("%s:%d", report.Line(short(t.path)), line)
	}
	lines := strings.Split(t.source, "\n")
	if line > len(lines) {
		return ""
	}
	wanted := strings.TrimSpace(lines[line-1])
	var found []string
	for _, file := range sourcesIn(t.path) {
		text, err := os.ReadFile(file)
		if err != nil {
			return ""
		}
		for i, l := range strings.Split(string(text), "\n") {
			if wanted != "" && strings.TrimSpace(l) == wanted {
				found = append(found, fmt.Sprintf("%s:%d", report.Line(short(file)), i+1))
			}
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// sourcesIn returns the files of a work folder that may hold code.
func sourcesIn(folder string) (files []string) {
	for _, within := range []string{folder, filepath.Join(folder, "kernels")} {
		entries, err := os.ReadDir(within)
		if err != nil {
			continue
		}
		for _, e := range entries {
			ending := filepath.Ext(e.Name())
			if e.Type().IsRegular() && slices.Contains([]string{".py", ".cu", ".cpp", ".h", ".cuh", ".hpp"}, ending) {
				files = append(files, filepath.Join(within, e.Name()))
			}
		}
	}
	return files
}
