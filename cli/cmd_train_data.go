package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/trainer/daydata"
	"github.com/kernelwright/kernelwright/trainer/tasks"
)

type trainDataCmd struct {
	Out string `help:"Write it to this folder, too." placeholder:"DIR" type:"path" predictor:"dir"`
}

// Help is shown below the flags.
func (trainDataCmd) Help() string {
	return "Runs whose kernel was certified join what a policy is trained on, where the settings of their model say train_on = true (its licence allows it). Nothing is taken of a run that cheated, that is about a protected or a held-out task, or that holds what looks like a secret. Files keep their names alone: no path leaves."
}

// Run says what would be taken, and why the rest would not.
func (c trainDataCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	filter, done, err := r.dayData(a.ctx, a.env)
	if err != nil {
		return err
	}
	defer done()
	var counts daydata.Counts
	if c.Out != "" {
		counts, err = daydata.Export(a.ctx, r.store, filter, c.Out)
	} else {
		counts, err = daydata.Each(a.ctx, r.store, filter, func(daydata.Trajectory) error { return nil })
	}
	if err != nil {
		return interruption(a.ctx, err)
	}
	if a.json {
		return a.printJSON(struct {
			daydata.Counts
			Folder string `json:"folder,omitempty"`
		}{counts, a.shown(c.Out)})
	}
	return printDayData(a, counts, c.Out)
}

func printDayData(a *app, c daydata.Counts, folder string) error {
	said := fmt.Sprintf("%d of %d runs would be taken: %d answers", c.Trajectories, c.Runs, c.Calls)
	if folder != "" {
		said = fmt.Sprintf("%d of %d runs are in %s: %d answers", c.Trajectories, c.Runs, short(folder), c.Calls)
	}
	if err := a.printf("%s\n", said); err != nil {
		return err
	}
	table := func(head string, counts map[string]int) error {
		if len(counts) == 0 {
			return nil
		}
		names := sorted(counts)
		slices.SortStableFunc(names, func(x, y string) int { return cmp.Compare(counts[y], counts[x]) })
		rows := [][]string{{head, "runs"}}
		for _, name := range names {
			rows = append(rows, []string{report.Line(name), fmt.Sprint(counts[name])})
		}
		if err := a.printf("\n"); err != nil {
			return err
		}
		return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{0: true}))
	}
	if err := table("taken, by model", c.Models); err != nil {
		return err
	}
	return table("left out, because it", c.LeftOut)
}

// dayData is what may be taken of people's runs, by the settings. done ends what was
// started for it.
func (r *room) dayData(ctx context.Context, env []string) (f daydata.Filter, done func(), err error) {
	done = func() {}
	f = daydata.Filter{TrainOn: r.trainOn, Secret: secretIn(env)}
	protected, err := tasks.ReadProtected(r.config.Training.Protected)
	if err != nil {
		return f, done, usage(err.Error(), "name files and folders of references in training.protected")
	}
	held, err := r.store.HeldOut(ctx)
	if err != nil || len(protected)+len(held) == 0 {
		return f, done, err
	}
	python, err := r.anyPython()
	if err != nil {
		return f, done, err
	}
	outside, err := tasks.NewOutside(ctx, r.store, r.folder, python, protected)
	if err != nil {
		return f, done, err
	}
	f.Protected = func(ctx context.Context, reference string) (string, error) {
		like, compared, err := outside.Like(ctx, reference)
		switch {
		case err != nil:
			return "", err
		case !compared:
			return daydata.Uncompared, nil
		case like:
			return daydata.Protected, nil
		}
		return "", nil
	}
	return f, outside.Close, nil
}

// policyProvider is that of policies that kernelwright trained itself.
const policyProvider = "policy"

// trainOn reports whether the settings of a model say that a policy may be trained on
// its answers. Those of policy:current count for every version of a policy.
func (r *room) trainOn(model string) bool {
	set := r.config.LLM.Models[model].TrainOn
	if set == nil && strings.HasPrefix(model, policyProvider+":") {
		set = r.config.LLM.Models[policyProvider+":current"].TrainOn
	}
	return set != nil && *set
}

// leastSecret is how long the value of a variable is that is looked for as a secret.
const leastSecret = 8

// secretIn returns what reports whether a text holds a key: one that looks like
// that, or the value of a variable that is called so.
func secretIn(env []string) func(text string) bool {
	var values []string
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		for _, word := range []string{"KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"} {
			if strings.Contains(strings.ToUpper(name), word) && len(value) >= leastSecret {
				values = append(values, value)
				break
			}
		}
	}
	return func(text string) bool {
		return config.HoldsSecret(text) || slices.ContainsFunc(values, func(v string) bool { return strings.Contains(text, v) })
	}
}

// anyPython finds one that compares texts, which needs no PyTorch.
func (r *room) anyPython() (string, error) {
	if r.config.Python != "" {
		return exec.LookPath(r.config.Python)
	}
	if own, err := filepath.Glob(filepath.Join(r.folder, "venv-*", "bin", "python")); err == nil && len(own) > 0 {
		return own[len(own)-1], nil
	}
	found, err := exec.LookPath("python3")
	if err != nil {
		return "", &Error{
			Code: ExitFailure,
			Text: "references cannot be held against protected and held-out tasks",
			Err:  err,
			Hint: "install Python 3.11 or later, or name one with --python in the settings (python)",
		}
	}
	return found, nil
}
