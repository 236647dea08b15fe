package ui

import (
	"html/template"
	"regexp"
	"strings"

	"github.com/kernelwright/kernelwright/report"
)

var bold = regexp.MustCompile(`\*\*([^*]+)\*\*`)

// cells are those of a table's row.
func cells(line string) []string { return strings.Split(strings.Trim(line, "|"), "|") }

// markdown shows a page that this program writes in Markdown: headings, tables, lists,
// quotes and paragraphs, each of its own lines. The first heading is left out.
func markdown(text string) template.HTML {
	var b strings.Builder
	open := ""
	within := func(tag string) {
		if open != tag && open != "" {
			b.WriteString(map[string]string{"ul": "</ul>", "table": "</tbody></table></div>"}[open])
		}
		if open != tag && tag != "" {
			b.WriteString(map[string]string{"ul": "<ul>", "table": `<div class="scroll" tabindex="0"><table><thead>`}[tag])
		}
		open = tag
	}
	span := func(s string) string {
		return bold.ReplaceAllString(string(report.Inline(s)), "<b>$1</b>")
	}
	var header []string
	var numeric []bool
	row := func(tag string, of []string) {
		b.WriteString("<tr>")
		for i, c := range of {
			class := ""
			if i < len(numeric) && numeric[i] {
				class = ` class="n"`
			}
			b.WriteString("<" + tag + class + ">" + span(strings.TrimSpace(c)) + "</" + tag + ">")
		}
		b.WriteString("</tr>")
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "", strings.HasPrefix(line, "# "):
			within("")
		case strings.HasPrefix(line, "## "):
			within("")
			b.WriteString("<h3>" + span(line[3:]) + "</h3>")
		case strings.HasPrefix(line, "> "):
			within("")
			b.WriteString(`<p class="care">` + span(line[2:]) + "</p>")
		case strings.HasPrefix(line, "- "):
			within("ul")
			b.WriteString("<li>" + span(line[2:]) + "</li>")
		case strings.HasPrefix(line, "|---"):
			numeric = numeric[:0]
			for _, c := range cells(line) {
				numeric = append(numeric, strings.HasSuffix(c, ":"))
			}
			row("th", header)
			b.WriteString("</thead><tbody>")
		case strings.HasPrefix(line, "|") && open != "table":
			within("table")
			header = cells(line)
		case strings.HasPrefix(line, "|"):
			row("td", cells(line))
		default:
			within("")
			b.WriteString("<p>" + span(line) + "</p>")
		}
	}
	within("")
	return template.HTML(b.String()) //nolint:gosec // every text in it is escaped
}
