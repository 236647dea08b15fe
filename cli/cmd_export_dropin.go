package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

// The forms of an export.
const (
	asFile     = "file"
	asCustomOp = "custom-op"
	asPackage  = "package"
)

// dropIn writes an operator of PyTorch, or a package with one, and its certificate.
func (c exportCmd) dropIn(a *app, d report.Data, r kernelwright.Round) error {
	files, sum, err := c.dropInFiles(d, r)
	var cannot *report.ErrNoDropIn
	if errors.As(err, &cannot) {
		return usage(fmt.Sprintf("no operator can be made of run %d: %s", c.ID, cannot.Why), "leave --as out: the kernel's file stands by itself")
	}
	if err != nil {
		return err
	}
	if c.As == asPackage {
		err = writeFolder(c.Out, files)
	} else {
		err = writeNew(c.Out, files[filepath.Base(c.Out)])
		if err == nil {
			certificate := certificateOf(c.Out)
			if err = writeNew(certificate, files[filepath.Base(certificate)]); err != nil {
				err = errors.Join(err, os.Remove(c.Out))
			}
		}
	}
	if err != nil {
		return err
	}
	v := report.Counts(r)
	if a.json {
		return a.printJSON(map[string]any{
			"path": a.shown(c.Out), "as": c.As, "operator": report.Operator(d, sum), "autograd": c.Autograd, "sha256": sum, "run": c.ID, "round": r.Index,
			"task": d.Run.TaskName, "device": d.Run.Device, "candidate_ms": v.CandidateMS, "baselines": v.Baselines, "speedup": v.Speedup,
		})
	}
	said := fmt.Sprintf("written: %s (operator %s, of round %d of run %d, certified)\n", report.Line(a.shown(c.Out)), report.Operator(d, sum), r.Index, c.ID)
	said += figuresOf(v)
	if c.As == asPackage {
		path := a.shown(c.Out)
		if !strings.Contains(path, string(filepath.Separator)) {
			path = "." + string(filepath.Separator) + path // else pip looks for a package of that name elsewhere
		}
		module := report.Identifier(filepath.Base(c.Out))
		said += fmt.Sprintf("`%s && %s` installs it, and holds it against the reference\n", report.Command("pip", "install", path), report.Command("python", "-m", module))
	} else {
		said += fmt.Sprintf("`%s` holds it against the reference\n", report.Command("python", a.shown(c.Out)))
	}
	said += fmt.Sprintf("`%s` says whether it belongs to its certificate\n", report.Command("kernelwright", "verify", a.shown(c.Out)))
	return a.printf("%s", said)
}

// certificateOf is where the certificate of a file lies.
func certificateOf(path string) string {
	return strings.TrimSuffix(strings.TrimSuffix(path, ".py"), ".best") + ".certificate.json"
}

// dropInFiles returns the texts of what is written by name, and the kernel's SHA-256.
func (c exportCmd) dropInFiles(d report.Data, r kernelwright.Round) (map[string]string, string, error) {
	kernel, sum, err := report.Exported(r)
	if err != nil {
		return nil, "", err
	}
	base := filepath.Base(c.Out)
	in := report.DropIn{Module: report.Identifier(strings.TrimSuffix(base, ".py")), Self: base, Autograd: c.Autograd, Package: c.As == asPackage}
	if in.Package {
		in.Self = "__init__.py"
	}
	operator, err := report.CustomOp(d, r, in)
	if err != nil {
		return nil, "", err
	}
	files, place := map[string]string{base: operator}, filepath.Base(certificateOf(c.Out))
	if in.Package {
		below := in.Module + "/"
		place = below + "certificate.json"
		files = map[string]string{
			below + "__init__.py": operator, below + "__main__.py": "from . import NAME, check\n\ncheck()\nprint(f\"{NAME}: right alone and compiled in one graph, and opcheck passes\")\n",
			below + "kernel.py": kernel, below + "reference.py": d.Task.Source,
			"pyproject.toml": report.PackageProject(d, r, in.Module), "README.md": report.PackageReadme(d, r, in.Module),
		}
	}
	as := report.ExportedAs{Form: c.As, Operator: report.Operator(d, sum), Autograd: c.Autograd, Files: map[string]string{}}
	for name, text := range files {
		as.Files[name] = kernelwright.HashText(text)
	}
	certificate, err := report.CertificateFor(d, r, as)
	files[place] = string(certificate)
	return files, sum, err
}

// writeFolder writes files to a folder that must not be there: whole, or not at all.
func writeFolder(path string, files map[string]string) (err error) {
	if _, err := os.Lstat(path); err == nil {
		return usage("there is something at "+path+" already", "name another folder with --out, or remove it first")
	}
	half, err := os.MkdirTemp(filepath.Dir(path), ".kernelwright-export-")
	if err != nil {
		return outError(path, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(half)) }()
	made := filepath.Join(half, "made")
	for name, text := range files {
		to := filepath.Join(made, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return outError(path, err)
		}
		if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
			return outError(path, err)
		}
	}
	err = os.Rename(made, path)
	if errors.Is(err, fs.ErrExist) {
		return usage("there is something at "+path+" already", "name another folder with --out, or remove it first")
	}
	if err != nil {
		return outError(path, err)
	}
	return nil
}
