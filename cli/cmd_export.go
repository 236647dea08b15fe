package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/internal/wholefile"
	"github.com/kernelwright/kernelwright/report"
)

type exportCmd struct {
	ID    int64  `arg:"" name:"run" help:"Number of the run."`
	Round *int   `help:"The round whose kernel it is; else the best certified one. A correct round that is not certified gives its kernel without a certificate." placeholder:"N"`
	Out   string `help:"The file to write, which must not be there yet; of a package the folder." placeholder:"PATH" type:"path" required:"" predictor:"file"`

	As       string `help:"file; custom-op: an operator of torch.library; or package: a folder that pip installs." default:"file" enum:"file,custom-op,package" placeholder:"FORM"`
	Autograd bool   `help:"Of an operator: gradients, by the reference."`
}

// Help is shown below the flags.
func (exportCmd) Help() string {
	return "Writes the certified file, with its certificate beside it under the name that the file gives, also of a kernel that is slower than the fastest baseline and was therefore not written as NAME.best.py. With --round it also writes the kernel of a correct round that was not certified, and the file says that first. As a custom-op or a package it is an operator that torch.compile takes into its graph, with its certificate beside it: docs/your-package.md."
}

// Run writes the kernel of a round to a file.
func (c exportCmd) Run(a *app) error {
	switch {
	case c.Autograd && c.As == asFile:
		return usage("--autograd is for operators, and --as is file", "add --as custom-op or --as package")
	case c.As == asCustomOp && !strings.HasSuffix(c.Out, ".py"):
		return usage(c.Out+" is no name of a Python file", "name one that ends in .py with --out")
	}
	d, err := a.openRounds(c.ID)
	if err != nil {
		return err
	}
	r, err := c.chosen(d.Rounds)
	if err != nil {
		return err
	}
	switch certified := report.Counts(r).Status == kernelwright.Certified; {
	case !certified && c.As != asFile:
		return usage(fmt.Sprintf("an operator is made of a certified kernel, and round %d of run %d is %s", r.Index, c.ID, report.RoundStanding(r)), "leave --as out: the kernel's file is written, without a certificate")
	case !certified:
		return c.uncertified(a, d, r)
	case c.As != asFile:
		return c.dropIn(a, d, r)
	}
	text, sum, err := report.Exported(r)
	if err != nil {
		return err
	}
	certificate, err := report.CertificateOf(d, r, filepath.Base(c.Out))
	if err != nil {
		return err
	}
	beside := placeOfCertificate(c.Out, text)
	there, err := certifies(beside, c.Out, sum)
	if err != nil {
		return err
	}
	if err := writeNew(c.Out, text); err != nil {
		return err
	}
	if !there {
		if err := wholefile.Write(beside, certificate); err != nil {
			return errors.Join(outError(beside, err), os.Remove(c.Out))
		}
	}
	v := report.Counts(r)
	if a.json {
		return a.printJSON(map[string]any{
			"path": a.shown(c.Out), "certificate": a.shown(beside), "sha256": sum, "certified": true, "run": c.ID, "round": r.Index, "task": d.Run.TaskName, "device": d.Run.Device,
			"candidate_ms": v.CandidateMS, "baselines": v.Baselines, "speedup": v.Speedup,
		})
	}
	said := fmt.Sprintf("written: %s (round %d of run %d, certified)\n", report.Line(a.shown(c.Out)), r.Index, c.ID)
	said += fmt.Sprintf("its certificate: %s\n", report.Line(a.shown(beside)))
	said += figuresOf(v)
	if v.Speedup.Slower() {
		said += fmt.Sprintf("take care: it is slower than %s, which is the better choice\n", report.Against(v.Speedup))
	}
	return a.printf("%s", said)
}

// placeOfCertificate is where the certificate of an exported file goes: by the name that
// the file gives it.
func placeOfCertificate(path, file string) string {
	if name := report.CertificateIn(file); name != "" {
		return filepath.Join(filepath.Dir(path), name)
	}
	return certificateOf(path)
}

// certifies reports whether a certificate of the text with this SHA-256 lies at a path. One
// of an older text of the same file may be replaced. What else lies there is an error.
func certifies(path, file, sum string) (bool, error) {
	text, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	held, bad := report.ReadCertificate([]byte(text))
	switch {
	case errors.Join(err, bad) == nil && held.SHA256 == sum:
		return true, nil
	case errors.Join(err, bad) == nil && held.File == filepath.Base(file):
		return false, nil
	}
	return false, usage("there is a file "+path+" already, which is no certificate of this kernel", "the kernel's file names its certificate so: name a file in another folder")
}

// figuresOf is the lines with what a verdict measured, and with what their marks mean.
func figuresOf(v kernelwright.Verdict) string {
	said := ""
	if figures := report.Measured(v); figures != "" {
		said = figures + "\n"
	}
	for _, mark := range report.Marks(v.Speedup) {
		said += mark + "\n"
	}
	return said
}

// chosen returns the round that is asked for, or says why its kernel cannot be had.
func (c exportCmd) chosen(rounds []kernelwright.Round) (kernelwright.Round, error) {
	if c.Round == nil {
		if best, v, ok := report.Best(rounds); ok && v.Status == kernelwright.Certified {
			return best, nil
		}
		return kernelwright.Round{}, notFound(fmt.Sprintf("run %d has no certified kernel", c.ID), c.hint(rounds))
	}
	i := slices.IndexFunc(rounds, func(r kernelwright.Round) bool { return r.Index == *c.Round })
	if i < 0 {
		return kernelwright.Round{}, noRound(c.ID, *c.Round, rounds)
	}
	r := rounds[i]
	if why := report.Withheld(r); report.Counts(r).Status != kernelwright.Certified && why != "" {
		return r, notFound(fmt.Sprintf("round %d of run %d %s", r.Index, c.ID, why), c.hint(rounds))
	}
	return r, nil
}

// hint says which rounds have a kernel.
func (c exportCmd) hint(rounds []kernelwright.Round) string {
	var certified, correct []string
	fastest := kernelwright.Round{}
	for _, r := range rounds {
		switch ms := r.Verdict.CandidateMS; {
		case report.Counts(r).Status == kernelwright.Certified:
			certified = append(certified, fmt.Sprint(r.Index))
		case report.Withheld(r) == "":
			if len(correct) == 0 || ms > 0 && (ms < fastest.Verdict.CandidateMS || fastest.Verdict.CandidateMS == 0) {
				fastest = r
			}
			correct = append(correct, fmt.Sprint(r.Index))
		}
	}
	switch {
	case len(certified) > 0:
		return "certified of this run: " + strings.Join(certified, ", ")
	case len(correct) > 0:
		return fmt.Sprintf("correct by their quick verdict, and not certified: %s; `kernelwright export %d --round %d --out PATH` writes that without a certificate", strings.Join(correct, ", "), c.ID, fastest.Index)
	}
	return fmt.Sprintf("`kernelwright history show %d` says what each round came to", c.ID)
}

// noRound is the error of a verb that was asked for a round that is not there.
func noRound(run int64, index int, rounds []kernelwright.Round) error {
	return notFound(fmt.Sprintf("run %d has no round %d", run, index), fmt.Sprintf("it has rounds 0 to %d", rounds[len(rounds)-1].Index))
}

// writeNew writes a file that must not be there.
func writeNew(path, text string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		if info, serr := os.Stat(path); serr == nil && info.IsDir() {
			return usage(path+" is a folder", "name a file in it with --out")
		}
		return usage("there is a file "+path+" already", "name another one with --out, or remove it first")
	}
	if err != nil {
		return outError(path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(outError(path, err), os.Remove(path))
		}
	}()
	if _, err = f.WriteString(text); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
