package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/pipeline"
)

type trainStatusCmd struct {
	Pipeline int64 `arg:"" optional:"" help:"Number of the pipeline; without it the last one."`
}

// Help is shown below the flags.
func (trainStatusCmd) Help() string {
	return "On a terminal it goes on until the training does, or an interrupt; elsewhere it says once how things stand."
}

// statusEvery is how often a terminal is redrawn.
const statusEvery = time.Second

// Run says how far training is.
func (c trainStatusCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	id := c.Pipeline
	if id == 0 {
		if id, err = newestPipeline(a.ctx, r.store); errors.Is(err, store.ErrNotFound) {
			return notFound("nothing was trained in "+r.folder, "`kernelwright train run --small` begins")
		} else if err != nil {
			return err
		}
	}
	if a.json {
		stages, err := r.stagesOf(a.ctx, id)
		if err != nil {
			return err
		}
		curves := []curve{}
		if len(stages) > 0 {
			if curves, err = curvesOf(pipeline.StageFolder(r.folder, stages[len(stages)-1])); err != nil {
				return err
			}
		}
		return a.printJSON(map[string]any{"pipeline": id, "running": running(r, stages), "stages": objectsOf(stages), "curves": curves})
	}
	live := terminal(a.stdout)
	for drawn := 0; ; {
		text, goes, err := r.statusText(a.ctx, id)
		if err != nil {
			return err
		}
		if drawn > 0 {
			text = fmt.Sprintf("\x1b[%dA\x1b[J", drawn) + text
		}
		if err := a.printf("%s", text); err != nil {
			return err
		}
		drawn = strings.Count(text, "\n")
		if !live || !goes {
			return nil
		}
		select {
		case <-time.After(statusEvery):
		case <-a.ctx.Done():
			return nil
		}
	}
}

func running(r *room, stages []store.Stage) bool {
	return slices.ContainsFunc(stages, func(s store.Stage) bool { return r.shownStatus(s) == string(store.StageRunning) })
}

// statusText is how a pipeline stands, and whether it goes on.
func (r *room) statusText(ctx context.Context, id int64) (string, bool, error) {
	stages, err := r.stagesOf(ctx, id)
	if err != nil {
		return "", false, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "pipeline %d\n", id)
	rows := [][]string{}
	for _, s := range stages {
		row := []string{"", s.Stage, strings.ReplaceAll(r.shownStatus(s), "_", " "), fmt.Sprintf("%.0f s", s.Seconds), fmt.Sprintf("%d verdicts", s.Verdicts)}
		if s.Reason != "" {
			row = append(row, report.Line(s.Reason))
		}
		rows = append(rows, row)
	}
	if err := report.Columns(&b, rows, map[int]bool{1: true, 2: true, 5: true}); err != nil {
		return "", false, err
	}
	if len(stages) > 0 {
		curves, err := curvesOf(pipeline.StageFolder(r.folder, stages[len(stages)-1]))
		if err != nil {
			return "", false, err
		}
		for _, c := range curves {
			c.draw(&b)
		}
	}
	return b.String(), running(r, stages), nil
}

// draw writes a line for each metric: its course and its last value.
func (c curve) draw(b *strings.Builder) {
	if len(c.Steps) == 0 {
		return
	}
	fmt.Fprintf(b, "%s, step %.0f\n", c.Part, c.Steps[len(c.Steps)-1]["step"])
	for _, name := range shownMetrics {
		var course []float64
		for _, s := range c.Steps {
			if v, there := s[name]; there {
				course = append(course, v)
			}
		}
		if len(course) > 0 {
			fmt.Fprintf(b, "  %-20s %s %.4g\n", strings.ReplaceAll(name, "_", " "), spark(course, sparkWidth), course[len(course)-1])
		}
	}
}

const sparkWidth = 40

// spark draws a course in one line: each character is the mean of its share of the
// values, between their lowest and their highest.
func spark(values []float64, width int) string {
	bars := []rune("▁▂▃▄▅▆▇█")
	n := min(width, len(values))
	means := make([]float64, n)
	for i := range means {
		from, to := i*len(values)/n, (i+1)*len(values)/n
		for _, v := range values[from:to] {
			means[i] += v / float64(to-from)
		}
	}
	low, high := slices.Min(means), slices.Max(means)
	var b strings.Builder
	for _, v := range means {
		at := 0
		if high > low {
			at = int(math.Round((v - low) / (high - low) * float64(len(bars)-1)))
		}
		b.WriteRune(bars[at])
	}
	return b.String()
}
