package cli

import (
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/report"
)

type configCmd struct {
	Show  configShowCmd  `cmd:"" help:"Print what is in force, and where each value came from."`
	Check configCheckCmd `cmd:"" help:"Check a settings file, or what is in force."`
}

type configShowCmd struct {
	Default bool `help:"Print every key with its default, whatever is set and however wrong that is."`
}

type setting struct {
	Key    string        `json:"key"`
	Value  any           `json:"value" keep:"empty"`
	Origin config.Origin `json:"origin"`
}

// Run prints every key, its value and its origin. The text is TOML.
func (s configShowCmd) Run(a *app) error {
	load, file := a.settings, config.FindFile(a.file, a.getenv)
	if s.Default {
		load, file = func() (config.Config, config.Origins, error) { return config.Load("") }, ""
	}
	c, origins, err := load()
	if err != nil {
		return err
	}
	var list []setting
	for _, k := range config.KeysOf(c) {
		v, _ := config.Value(c, k)
		list = append(list, setting{k, v, origins[k]})
	}
	folder, err := config.DataFolder(c, a.getenv)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"settings": list, "data_folder": folder, "file": file})
	}
	rows := make([][]string, len(list))
	for i, s := range list {
		rows[i] = []string{s.Key, "= " + report.Line(config.Literal(s.Value)), "# " + report.Line(s.Origin.String())}
	}
	if err := report.Columns(a.stdout, rows, map[int]bool{0: true, 1: true, 2: true}); err != nil {
		return ignoreClosed(err)
	}
	return a.printf("\n# data folder: %s\n", report.Line(folder))
}

type configCheckCmd struct {
	File string `arg:"" optional:"" help:"The file to check; else all that is in force." type:"path" predictor:"file"`
}

// Run checks one file over the defaults, whatever else is in force, or what is;
// with the files and folders that it names. All that is wrong is told.
func (c configCheckCmd) Run(a *app) error {
	file, load := c.File, func() (config.Config, config.Origins, error) { return config.Load(c.File) }
	if file == "" {
		file, load = config.FindFile(a.file, a.getenv), a.settings
	}
	settings, origins, err := load()
	if err == nil {
		err = config.CheckPaths(settings, origins, a.getenv)
	}
	var wrong config.Errors
	if errors.As(err, &wrong) {
		return a.allWrong(file, wrong)
	}
	if err != nil {
		return err
	}
	n := map[string]int{}
	for _, o := range origins {
		n[o.Kind]++
	}
	if a.json {
		return a.printJSON(map[string]any{"file": file, "ok": true, "keys": n["file"], "environment": n["environment"], "errors": []any{}})
	}
	if c.File != "" {
		return a.printf("%s is fine: it sets %d of %d keys\n", report.Line(file), n["file"], len(origins))
	}
	by := "no file"
	if file != "" {
		by = fmt.Sprintf("%d by %s", n["file"], report.Line(file))
	}
	return a.printf("the settings in force are fine: of %d keys %s, %d by the environment\n", len(origins), by, n["environment"])
}

// allWrong tells everything but the last error, which it returns.
func (a *app) allWrong(file string, wrong config.Errors) error {
	last := wrong[len(wrong)-1]
	if !a.json {
		for _, e := range wrong[:len(wrong)-1] {
			Explain(a.stderr, e)
		}
		return last
	}
	type one struct {
		Where string `json:"where,omitempty"`
		Error string `json:"error"`
		Hint  string `json:"hint,omitempty"`
	}
	all := make([]one, len(wrong))
	for i, e := range wrong {
		all[i] = one{e.Where, e.Text, e.Hint}
	}
	return a.printLast(map[string]any{"file": file, "ok": false, "errors": all}, last)
}
