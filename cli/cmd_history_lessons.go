package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
)

type historyLessonsCmd struct {
	Operators  []string `help:"Only of tasks that have all these operators: softmax, or aten.softmax." placeholder:"NAMES" sep:","`
	Bottleneck string   `help:"Only changes that this rule of the built-in Judge advised (memory_ceiling), or against a bottleneck that has this word." placeholder:"NAME"`
	Device     string   `help:"Only of this device: cpu, cuda:0, its key or a part of its name." placeholder:"DEVICE"`
	Limit      int      `help:"At most so many." default:"50"`
}

// Help is shown below the flags.
func (historyLessonsCmd) Help() string {
	return "A lesson is what one change brought, in a run that ended with a certified kernel: what was advised, what was changed, the time before and after, and the metrics that moved most. Runs are given those of their own device, of tasks with operators like the one at hand."
}

// Run lists lessons, the newest first.
func (c historyLessonsCmd) Run(a *app) (err error) {
	if c.Limit < 1 || c.Limit > store.MaxLessons {
		return usage(fmt.Sprintf("--limit is %d", c.Limit), fmt.Sprintf("it takes a number from 1 to %d", store.MaxLessons))
	}
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	f := store.LessonFilter{Bottleneck: c.Bottleneck, Limit: c.Limit}
	for _, o := range c.Operators {
		if o = strings.TrimSpace(o); o != "" && !strings.Contains(o, ".") {
			o = "aten." + o
		}
		f.Holding = append(f.Holding, o)
	}
	names, err := r.deviceNames(a.ctx)
	if err != nil {
		return err
	}
	if c.Device != "" {
		if f.Devices = named(names, c.Device); len(f.Devices) == 0 {
			return notFound(fmt.Sprintf("nothing was recorded on a device %q", c.Device), "`kernelwright history lessons` without --device says which there are")
		}
	}
	found, err := r.store.Lessons(a.ctx, f)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"lessons": append([]kernelwright.Lesson{}, found...)})
	}
	if len(found) == 0 {
		return a.printf("no lessons: no run that ended with a certified kernel has tried such a change\n")
	}
	rows := [][]string{{"run", "round", "task", "device", "advised by", "changed", "what came of it", "what moved"}}
	for _, l := range found {
		by, changed := l.Rule, report.LessonSteps(l)
		if by == "" {
			by = "–"
			if l.Method != "" {
				by = "a model"
			}
		}
		if changed == "" {
			changed = l.Tried
		}
		device := l.Device
		if name := names[l.DeviceKey].Name; name != "" {
			device += ", " + name
		}
		rows = append(rows, []string{
			strconv.FormatInt(l.Run, 10), strconv.Itoa(l.Round), report.Line(l.TaskName), report.Line(device), report.Line(by), report.Line(changed),
			report.LessonResult(l), report.LessonMoved(l),
		})
	}
	left := map[int]bool{2: true, 3: true, 4: true, 5: true, 6: true, 7: true}
	return ignoreClosed(report.Columns(a.stdout, rows, left))
}

// deviceNames returns every recorded device by its key.
func (r *room) deviceNames(ctx context.Context) (map[string]kernelwright.Device, error) {
	all, err := r.store.Devices(ctx)
	devices := map[string]kernelwright.Device{}
	for _, d := range all {
		devices[d.Key] = d
	}
	return devices, err
}

// named returns the keys of the devices that people may call so: after a new
// driver or PyTorch one device has several.
func named(devices map[string]kernelwright.Device, called string) []string {
	var keys []string
	for key, d := range devices {
		if d.String() == called || key == called || string(d.Kind) == called || strings.Contains(strings.ToLower(d.Name), strings.ToLower(called)) {
			keys = append(keys, key)
		}
	}
	return keys
}
