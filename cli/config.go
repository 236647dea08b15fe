package cli

import (
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/report"
)

type configCmd struct {
	Show  configShowCmd  `cmd:"" help:"Print what is in force, and where each value came from."`
	Check configCheckCmd `cmd:"" help:"Check a settings file."`
}

type configShowCmd struct{}

type setting struct {
	Key    string        `json:"key"`
	Value  any           `json:"value"`
	Origin config.Origin `json:"origin"`
}

// Run prints every key, its value and its origin. The text is TOML.
func (configShowCmd) Run(a *app) error {
	c, origins, err := a.settings()
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
	strays := config.Strays(a.env)
	if a.json {
		return a.printJSON(map[string]any{"settings": list, "data_folder": folder, "file": config.FindFile(a.file, a.getenv), "notes": strays})
	}
	rows := make([][]string, len(list))
	for i, s := range list {
		rows[i] = []string{s.Key, "= " + report.Line(config.Literal(s.Value)), "# " + report.Line(s.Origin.String())}
	}
	if err := report.Columns(a.stdout, rows, map[int]bool{0: true, 1: true, 2: true}); err != nil {
		return ignoreClosed(err)
	}
	if err := a.printf("\n# data folder: %s\n", report.Line(folder)); err != nil {
		return err
	}
	for _, n := range strays {
		if err := a.printf("# note: %s\n", report.Line(n)); err != nil {
			return err
		}
	}
	return nil
}

type configCheckCmd struct {
	File string `arg:"" optional:"" help:"The file to check; else the one in force." type:"path" predictor:"file"`
}

// Run checks one file over the defaults, whatever else is in force.
func (c configCheckCmd) Run(a *app) error {
	if c.File == "" {
		c.File = config.FindFile(a.file, a.getenv)
	}
	if c.File == "" {
		return notFound("no settings file is in force", "name one: kernelwright config check FILE")
	}
	_, origins, err := config.Load(c.File)
	if err != nil {
		return err
	}
	n := 0
	for _, o := range origins {
		if o.Kind == "file" {
			n++
		}
	}
	if a.json {
		return a.printJSON(map[string]any{"file": c.File, "ok": true, "keys": n})
	}
	return a.printf("%s is fine: it sets %d of %d keys\n", report.Line(c.File), n, len(origins))
}
