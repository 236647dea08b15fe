package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/task"
)

type buildCmd struct {
	Candidates []string `arg:"" name:"candidate" help:"Files that define ModelNew, or work folders." type:"path" predictor:"file"`
	Arch       []string `help:"Architectures of GPUs to compile for; else sm_80, sm_90a and sm_100a. No such GPU is needed." placeholder:"SM"`
	Python     string   `help:"A Python that has PyTorch." placeholder:"PROGRAM" key:"python"`
	Sandbox    string   `help:"strict or weak." placeholder:"MODE" key:"sandbox"`
}

// Help is shown below the flags.
func (buildCmd) Help() string {
	return "Builds each candidate in the sandbox, as an evaluation does, and says what the compiler made of it: for a GPU the registers, shared memory, spills and instructions of each kernel. Nothing is run, and kernels in Triton, which are compiled when they run, are not seen. With --json one object a line. Exit code 0, whatever the compiler says."
}

var archPattern = regexp.MustCompile(`^sm_[1-9][0-9]{1,2}[af]?$`)

// builtFile is what is said of one candidate.
type builtFile struct {
	File   string             `json:"file"`
	Builds []hwfeedback.Build `json:"builds,omitempty"`
	Reason string             `json:"reason,omitempty"` // why it cannot be read
	Hint   string             `json:"hint,omitempty"`

	of candidateText
}

// Run builds them one after the other, each for all architectures at once.
func (c buildCmd) Run(a *app) (err error) {
	a.lines = true
	for _, arch := range c.Arch {
		if !archPattern.MatchString(arch) {
			return usage(fmt.Sprintf("there is no architecture %q", arch), "they are named as nvcc does: sm_80, sm_90a")
		}
	}
	for _, path := range c.Candidates {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return noFile(path)
		}
	}
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	show := newProgress(a.stderr)
	defer show.done()
	o := r.options(show.stage)
	o.KeepWarm = r.config.Evaluation.KeepWarm.Std()
	o.Device, o.Unmeasured = string(kernelwright.CPUDevice), true
	var e *hwfeedback.Evaluator // nil until there is something to build
	defer func() {
		if e != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	for _, path := range c.Candidates {
		show.begin(filepath.Base(path))
		found := builtFile{File: path}
		f, err := task.ReadModelNew(path)
		var unreadable *kernelwright.InvalidTaskError
		switch {
		case errors.As(err, &unreadable):
			found.Reason, found.Hint = unreadable.Reason, unreadable.Hint
		case err != nil:
			return err
		default:
			if e == nil {
				if e, err = r.evaluator(a.ctx, o); err != nil {
					return err
				}
			}
			found.of = candidateText{path, f.Source}
			found.Builds, err = e.Build(a.ctx, kernelwright.Candidate{Source: f.Source, Origin: "file"}, c.Arch)
			if err != nil {
				return cutShort(a.ctx, err)
			}
		}
		show.done()
		if a.json {
			err = a.printLine(found)
		} else {
			err = a.printf("%s", found.text())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f builtFile) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", report.Line(filepath.Base(f.File)))
	if f.Reason != "" {
		fmt.Fprintf(&b, "  %s\n", lower(report.Line(f.Reason)))
		if f.Hint != "" {
			fmt.Fprintf(&b, "  hint: %s\n", report.Line(f.Hint))
		}
	}
	for _, made := range f.Builds {
		if made.Called && len(made.Report.Kernels) == 0 && made.Status == "built" {
			fmt.Fprintf(&b, "  its kernels in %s are compiled when it runs\n", kernelwright.Language(made.Report.Form).Row().Title)
			break // on every architecture
		}
		place := made.Arch
		if place == "" {
			place = "cpu"
		}
		fmt.Fprintf(&b, "  %s: %s", place, strings.ReplaceAll(report.Line(made.Status), "_", " "))
		switch {
		case made.Report.Form == "none" && made.Status == "built":
			b.WriteString(": there is nothing to compile in it")
		case made.Report.Cached:
			b.WriteString(" before")
		default:
			fmt.Fprintf(&b, " in %.1f s", made.Report.Seconds)
		}
		if made.Reason != "" {
			fmt.Fprintf(&b, ": %s", lower(report.Line(made.Reason)))
		}
		b.WriteByte('\n')
		writeKernels(&b, "    ", made.Report.Kernels)
		writeLoops(&b, "    ", made.Report)
		writeErrors(&b, "    ", slices.DeleteFunc(slices.Clone(made.Report.Errors), func(d kernelwright.Diagnostic) bool {
			return d.Line < 1 // the reason says it
		}), f.of)
	}
	return b.String()
}

// maxLoops is how many loops are shown that a compiler did not vectorise.
const maxLoops = 4

// writeLoops says what g++ made of a candidate's loops.
func writeLoops(b *strings.Builder, indent string, made kernelwright.BuildReport) {
	if len(made.Vectorised) > 0 {
		lines := make([]string, len(made.Vectorised))
		for i, d := range made.Vectorised {
			lines[i] = strconv.Itoa(d.Line)
		}
		fmt.Fprintf(b, "%svectorised: the loops of lines %s\n", indent, strings.Join(slices.Compact(lines), ", "))
	}
	for _, d := range made.Missed[:min(len(made.Missed), maxLoops)] {
		fmt.Fprintf(b, "%sline %d is not vectorised: %s\n", indent, d.Line, report.Line(d.Message))
	}
	if n := len(made.Missed) - maxLoops; n > 0 {
		fmt.Fprintf(b, "%sand %d more are not\n", indent, n)
	}
}
