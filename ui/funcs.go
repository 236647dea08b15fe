package ui

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

// funcs are what templates can call, beside those of report. What is foreign goes
// through line or clean: control characters are shown by number.
var funcs = template.FuncMap{
	"ago":    func(ms int64) string { return ago(ms, time.Now()) },
	"iso":    func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) },
	"clock":  func(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04") },
	"day":    func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.DateOnly) },
	"words":  func(s any) string { return strings.ReplaceAll(report.Line(fmt.Sprint(s)), "_", " ") },
	"cost":   report.Cost,
	"spent":  report.Spent,
	"bytes":  report.ByteSize,
	"digits": digits,
	"class":  class,
	"short":  short,
	"times":  func(v float64) string { return fmt.Sprintf("%.2f×", v) },
	"took":   took,
	"percent": func(v float64) string {
		if v <= 0 || math.IsNaN(v) {
			return "–"
		}
		return fmt.Sprintf("%.0f %%", 100*v)
	},
	"standing":   report.RoundStanding,
	"counts":     report.Counts,
	"dict":       dict,
	"yes":        func(b *bool) bool { return b != nil && *b },
	"head":       func(s string) string { return cleanCut(report.Clean(s), maxMessage) },
	"steps":      report.LessonSteps,
	"movedwords": report.LessonMoved,
	"outcome": func(o kernelwright.LessonOutcome) string {
		return map[kernelwright.LessonOutcome]string{kernelwright.LessonFaster: "certified", kernelwright.LessonUnchanged: "correct"}[o] + map[kernelwright.LessonOutcome]string{kernelwright.LessonFailed: "failed", kernelwright.LessonSlower: "failed"}[o]
	},
	"stageclass": stageClass,
	"operators":  operators,
	"minutes":    func(ms int64) string { return fmt.Sprintf("%.0f min", float64(ms)/60000) },
	"sum":        func(a, b int64) int64 { return a + b },
	"days":       func() []int { return []int{7, 30, 90, 365} },
	"up":         func(n int) int { return n + 1 },
	"seconds":    seconds,
	"markdown":   markdown,
	"gauge":      func(v *float64, by float64, unit string) string { return fmt.Sprintf("%.0f %s", by**v, unit) },
	"gib":        func(v *int64) string { return fmt.Sprintf("%.1f GiB", float64(*v)/(1<<30)) },
	"down":       func(n int) int { return n - 1 },
	"ratio": func(part, whole int) float64 {
		if whole <= 0 {
			return 0
		}
		return float64(part) / float64(whole)
	},
}

// ago says how long ago something was.
func ago(ms int64, now time.Time) string {
	if ms == 0 {
		return "–"
	}
	switch d := now.Sub(time.UnixMilli(ms)); {
	case d < time.Minute:
		return "just now"
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	default:
		return time.UnixMilli(ms).UTC().Format(time.DateOnly)
	}
}

// took is the time between two moments; the second is now where it is 0.
func took(fromMS, toMS int64) string {
	if fromMS == 0 {
		return "–"
	}
	to := time.Now()
	if toMS != 0 {
		to = time.UnixMilli(toMS)
	}
	d := to.Sub(time.UnixMilli(fromMS)).Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	default:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	}
}

// seconds writes a duration.
func seconds(s float64) string {
	switch {
	case s < 10:
		return fmt.Sprintf("%.1f s", s)
	case s < 60:
		return fmt.Sprintf("%.0f s", s)
	case s < 7200:
		return fmt.Sprintf("%d min %02d s", int(s)/60, int(s)%60)
	}
	return fmt.Sprintf("%d h %02d min", int(s)/3600, int(s)/60%60)
}

// digits keeps four significant ones.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case a != 0 && (a >= 1e6 || a < 1e-3):
		return fmt.Sprintf("%.3g", v)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	default:
		return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", v), "0"), ".")
	}
}

// class groups statuses of runs and rounds by what they mean to a reader.
func class(status any) string {
	switch s := fmt.Sprint(status); s {
	case string(kernelwright.Certified), report.Faster, "promoted":
		return "certified"
	case string(kernelwright.Correct), string(kernelwright.RunRunning), string(kernelwright.RunQueued), report.NoDifference, report.Undecided, report.NotTimed, "waiting", "claimed":
		return "correct"
	case string(kernelwright.RunDone), string(kernelwright.RunDeclined), "stopped", "":
		return ""
	default:
		return "failed"
	}
}

// short is one line of a foreign text, of at most so many characters.
func short(most int, s string) string {
	r := []rune(report.Line(s))
	if len(r) <= most {
		return string(r)
	}
	return string(r[:most-1]) + "…"
}

// dict gives a template several values.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}

// stageClass is the class of a stage's status.
func stageClass(s store.StageStatus) string {
	switch {
	case s == store.StageRunning:
		return "correct"
	case s.Finished():
		return "certified"
	}
	return "failed"
}

// maxOperators is how many operators of a task a row names.
const maxOperators = 4

func operators(all []string) string {
	var each []string
	for _, o := range all {
		if o = report.Line(strings.TrimPrefix(o, "aten.")); !slices.Contains(each, o) {
			each = append(each, o)
		}
	}
	if n := len(each); n > maxOperators {
		return strings.Join(each[:maxOperators], ", ") + fmt.Sprintf(" and %d more", n-maxOperators)
	}
	return strings.Join(each, ", ")
}
