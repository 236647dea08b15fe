package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/daemon"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/serving"
)

// The rules for whatever is said to people: no capitals at the start, no full
// stop at the end. An error is one line that says what and where, then a hint
// that says what to do. Foreign texts pass report.Line first.

// Exit codes; docs/exit-codes.md explains them to users.
const (
	ExitOK          = 0   // done; a verdict was reached, whatever it is
	ExitFailure     = 1   // something outside of kernelwright, or a fault of ours
	ExitUsage       = 2   // the command line or the settings
	ExitNotFound    = 3   // what was asked for is not there
	ExitHeld        = 4   // another process holds the data folder
	ExitInterrupted = 130 // stopped by a signal; what was done is kept
)

// Error is a failure with its exit code and what to do about it.
type Error struct {
	Code int
	Text string
	Hint string
	Err  error // may be nil
}

func (e *Error) Error() string {
	switch {
	case e.Err == nil:
		return e.Text
	case e.Text == "":
		return e.Err.Error()
	default:
		return e.Text + ": " + e.Err.Error()
	}
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func usage(text, hint string) error { return &Error{Code: ExitUsage, Text: text, Hint: hint} }

func notFound(text, hint string) error { return &Error{Code: ExitNotFound, Text: text, Hint: hint} }

// errInterrupted is what a command returns that a signal stopped after it had
// kept what was done.
var errInterrupted = &Error{Code: ExitInterrupted, Text: "interrupted", Hint: "the same command goes on where this one stopped"}

// errCutShort is for a command that keeps nothing of what it had not finished.
var errCutShort = &Error{Code: ExitInterrupted, Text: "interrupted", Hint: "the same command begins anew"}

// ExitCode maps what Run returned to the code of the process.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	code, _, _ := explain(err)
	return code
}

// explain reduces any error to a code, a line and a hint.
func explain(err error) (code int, text, hint string) {
	code, text = ExitFailure, report.Line(err.Error())
	var (
		ours    *Error
		setting *config.Error
		parse   *kong.ParseError
		held    *daemon.HeldError
		write   *daemon.WriteError
		invalid *kernelwright.InvalidTaskError
		infra   *kernelwright.InfrastructureError
		setup   *hwfeedback.SetupError
		damaged *store.DamagedError
		gone    *store.GoneError
		model   *llm.Error
		policy  *policies.Error
		changed *policies.ChangedError
		mute    *serving.MuteError
		served  *serving.Error
	)
	switch {
	case errors.As(err, &ours):
		code, hint = ours.Code, ours.Hint
		if ours.Err != nil && hint == "" {
			_, _, hint = explain(ours.Err)
		}
	case errors.As(err, &setting):
		code, hint = ExitUsage, setting.Hint
	case errors.As(err, &parse):
		code, hint = ExitUsage, "see `kernelwright --help`"
		text = notANumber.ReplaceAllString(text, `$2 is not a whole number`)
		if parse.Context != nil {
			if n := parse.Context.Selected(); n != nil {
				hint = "see `" + n.FullPath() + " --help`"
			}
		}
		if strings.HasSuffix(text, "unknown flag --version") {
			hint = "`kernelwright version` prints it"
		}
	case errors.As(err, &held):
		code = ExitHeld
		hint = "stop that process, or use another folder with --data-dir"
	case errors.As(err, &write):
		// The first of several files: one cause keeps them all from being written.
		text, hint = report.Line(write.Error()), write.Hint
	case errors.As(err, &invalid):
		code, hint = ExitUsage, invalid.Hint
	case errors.As(err, &model):
		text, hint = report.Line(model.Error()), model.Hint
		switch model.Kind {
		case llm.BadKey, llm.UnknownModel, llm.BadRequest, llm.TooLong, llm.NoTools:
			code = ExitUsage
		}
	case errors.As(err, &policy):
		code, hint = ExitUsage, policy.Hint
		if policy.Missing {
			code = ExitNotFound
		}
	case errors.As(err, &changed):
		hint = changed.Hint()
	case errors.As(err, &mute):
		hint = mute.Hint()
	case errors.As(err, &served):
		hint = served.Hint
	case errors.As(err, &damaged):
		text, hint = report.Line(damaged.Error()), cmp.Or(damaged.Hint, damagedHint)
	case errors.As(err, &gone):
		text, hint = report.Line(gone.Error()), goneHint
	case store.Trouble(err) != nil:
		text = lower(store.Trouble(err).Error()) + ": " + text
		hint = worldHint(err, "")
	case errors.As(err, &infra):
		hint = worldHint(err, "`kernelwright doctor` examines this machine")
		if strings.Contains(text, "[Errno 28]") { // in the words of the Python side
			hint = worldHint(syscall.ENOSPC, "")
		}
	case errors.As(err, &setup):
		if hint = setup.Hint; errors.Is(err, syscall.ENOSPC) {
			hint = worldHint(err, "")
		}
	case errors.Is(err, context.Canceled):
		code, text = ExitInterrupted, "interrupted"
	default:
		hint = worldHint(err, "")
	}
	return code, lower(text), lower(report.Line(hint))
}

// notANumber is how the parser of the command line names what should be one.
var notANumber = regexp.MustCompile(`expected a valid (\d+ bit )?u?int but got ("[^"]*")`)

const damagedHint = "`kernelwright history check` says what of it can be read; put a copy in its place, or move it aside and keep it: a new record is then begun"

const goneHint = "what was recorded since then is lost unless that very file is put back; then start again: where there is none, a new record is begun"

// worldHint says what to do about a disk that is full, read-only or failing,
// or what else where it is none of these.
func worldHint(err error, other string) string {
	trouble := store.Trouble(err)
	switch {
	case errors.Is(trouble, store.ErrFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return "make room on that disk and give the same command again: what was recorded is kept"
	case errors.Is(trouble, store.ErrReadOnly) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		return "check who owns it and whether its disk is mounted read-only, or use another folder with --data-dir"
	case errors.Is(trouble, store.ErrBusy):
		return "see what else uses this data folder, then give the same command again"
	case errors.Is(trouble, store.ErrDisk) || errors.Is(err, syscall.EIO):
		return "see what the kernel says of the disk (dmesg), then `kernelwright history check`"
	case errors.Is(trouble, store.ErrDamaged):
		return damagedHint
	}
	return other
}

// lower takes the capital off a sentence that begins with one, but not off a
// name: "CUDA", "I/O", "ModelNew", "Model's forward".
func lower(s string) string {
	if !strings.HasSuffix(s, "..") {
		s = strings.TrimSuffix(s, ".")
	}
	r := []rune(s)
	first, _, _ := strings.Cut(s, " ")
	class, _, _ := strings.Cut(strings.ReplaceAll(first, "(", "'"), "'") // Model's, Model(*get_init_inputs())
	named := class == "Model" || strings.IndexFunc(strings.TrimLeft(first, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"), func(c rune) bool { return c >= 'A' && c <= 'Z' }) >= 0
	if len(r) > 1 && r[0] >= 'A' && r[0] <= 'Z' && r[1] >= 'a' && r[1] <= 'z' && !named {
		r[0] += 'a' - 'A'
	}
	return string(r)
}

// Explain says an error to people.
func Explain(w io.Writer, err error) {
	if err == nil {
		return
	}
	_, text, hint := explain(err)
	fmt.Fprintf(w, "kernelwright: error: %s\n", text)
	if hint != "" {
		fmt.Fprintf(w, "kernelwright: hint: %s\n", hint)
	}
}
