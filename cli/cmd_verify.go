package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

type verifyCmd struct {
	Path        string `arg:"" help:"A kernel's file, an operator's file, or a package's folder." type:"path" predictor:"file"`
	Certificate string `help:"Its certificate; else the one beside it, of the file's name or of the name that the file gives." placeholder:"FILE" type:"path" predictor:"file"`
}

// Help is shown below the flags.
func (verifyCmd) Help() string {
	return "Says whether a file and a certificate belong together, by their hashes, and what the certificate claims. It needs no device, no record and no Python. A hash is no signature: it says that the file is the one that was certified, not who wrote the certificate. Exit code 1 says that they do not belong together."
}

// maxVerified is the largest file that is read, in bytes.
const maxVerified = 64 << 20

// claims is what a certificate says, for programs.
type claims struct {
	Says         string                  `json:"says"`
	On           string                  `json:"on"`
	Issued       string                  `json:"issued"`
	CandidateMS  float64                 `json:"candidate_ms" unknown:"0"`
	Baselines    map[string]float64      `json:"baselines"`
	Speedup      *kernelwright.Speedup   `json:"speedup"`
	Right        string                  `json:"right"`
	OtherSizes   string                  `json:"other_sizes"`
	Assumes      []string                `json:"assumes"`
	Flags        []kernelwright.TaskFlag `json:"flags"`
	Notes        []string                `json:"notes"`
	Kernelwright string                  `json:"kernelwright"`
}

// Run holds a file against its certificate.
func (c verifyCmd) Run(a *app) error {
	info, err := os.Stat(c.Path)
	if err != nil {
		return notFound("there is nothing at "+c.Path, "name a kernel's file, or a package's folder")
	}
	at, module, err := c.place(info.IsDir())
	if err != nil {
		return err
	}
	text, err := readBounded(at)
	if errors.Is(err, fs.ErrNotExist) {
		if file, err := readBounded(c.Path); err == nil && report.SaysUncertified(file) {
			return notFound(c.Path+" is not certified, as it says itself", "`"+report.Command("kernelwright", "eval", "REFERENCE", short(c.Path), "--level", "certify")+"` evaluates it as a certificate does")
		}
		return notFound("there is no certificate "+at, "name it with --certificate")
	}
	if err != nil {
		return &Error{Code: ExitFailure, Text: at, Err: err, Hint: worldHint(err, "name another certificate with --certificate")}
	}
	held, err := report.ReadCertificate([]byte(text))
	if err != nil {
		return usage(at+" "+err.Error(), "name the certificate with --certificate")
	}
	var problems []string
	if info.IsDir() {
		problems = held.FolderBelongs(module, func(name string) (string, bool) {
			text, err := readBounded(filepath.Join(c.Path, filepath.FromSlash(name)))
			return text, err == nil
		})
	} else {
		file, err := readBounded(c.Path)
		if err != nil {
			return &Error{Code: ExitFailure, Text: c.Path, Err: err, Hint: worldHint(err, "name another file")}
		}
		problems = held.Belongs(file)
	}
	return c.tell(a, held, at, problems)
}

// place returns where the certificate lies, and of a folder that is an installed module
// its name.
func (c verifyCmd) place(folder bool) (at, module string, err error) {
	if !folder {
		if c.Certificate != "" {
			return c.Certificate, "", nil
		}
		at = certificateOf(c.Path)
		if _, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) {
			if file, err := readBounded(c.Path); err == nil {
				at = placeOfCertificate(c.Path, file)
			}
		}
		return at, "", nil
	}
	inside := filepath.Join(c.Path, "certificate.json")
	if _, err := os.Stat(inside); err == nil {
		return inside, filepath.Base(c.Path), nil
	}
	found, err := filepath.Glob(filepath.Join(escapeGlob(c.Path), "*", "certificate.json"))
	switch {
	case c.Certificate != "":
		return c.Certificate, "", nil
	case err != nil || len(found) != 1:
		return "", "", notFound(fmt.Sprintf("%s holds %d certificates", c.Path, len(found)), "name the folder that `kernelwright export RUN --as package` wrote, or the module that pip installed")
	}
	return found[0], "", nil
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

func readBounded(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, errors.New("it is not a regular file"))
	}
	text, err := io.ReadAll(io.LimitReader(f, maxVerified+1))
	if err == nil && len(text) > maxVerified {
		err = fmt.Errorf("it is larger than %d MiB", maxVerified>>20)
	}
	return string(text), err
}

func (c verifyCmd) tell(a *app, held report.Held, at string, problems []string) error {
	var failed error
	if len(problems) > 0 {
		failed = &Error{Code: ExitFailure, Text: fmt.Sprintf("%s does not belong to %s: %s", c.Path, at, problems[0]), Hint: "export it again with `kernelwright export RUN`, or evaluate what is there: `kernelwright eval REFERENCE FILE --level certify`"}
	}
	if a.json {
		form := "file"
		if held.As != nil {
			form = held.As.Form
		}
		return a.printLast(map[string]any{
			"belongs": failed == nil, "path": a.shown(c.Path), "certificate": a.shown(at), "form": form, "kernel_sha256": held.SHA256, "problems": append([]string{}, problems...),
			"claims": claims{
				held.Says, held.On, held.Issued, held.CandidateMS, held.Baselines, held.Speedup, held.Right, held.OtherSizes, held.Assumes, held.Flags, held.Notes, held.Kernelwright,
			},
		}, failed)
	}
	var b strings.Builder
	if failed == nil {
		fmt.Fprintf(&b, "belongs: %s to %s\n", report.Line(short(c.Path)), report.Line(short(at)))
	}
	for i, p := range problems {
		if i > 0 { // the first is the error
			fmt.Fprintf(&b, "also: %s\n", report.Line(p))
		}
	}
	fmt.Fprintf(&b, "the certificate claims:\n")
	for _, f := range []struct{ name, value string }{
		{"says", held.Says}, {"device", held.On}, {"issued", held.Issued}, {"correct", held.Right}, {"sizes", held.OtherSizes}, {"kernel", held.SHA256}, {"version", held.Kernelwright},
	} {
		if f.value != "" {
			fmt.Fprintf(&b, "  %-8s %s\n", f.name, report.Line(f.value))
		}
	}
	for _, assumes := range held.Assumes {
		fmt.Fprintf(&b, "  assumes  it %s\n", report.Line(assumes))
	}
	for _, f := range held.Flags {
		fmt.Fprintf(&b, "  care     %s\n", report.Line(report.FlagText(f)))
	}
	for _, n := range held.Notes {
		fmt.Fprintf(&b, "  note     %s\n", report.Line(n))
	}
	if err := a.printf("%s", b.String()); err != nil {
		return err
	}
	return failed
}
