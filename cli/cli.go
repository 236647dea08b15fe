// Package cli is the command line: one file a verb, cmd_*.go, and what verbs
// share. It wires the rooms together and says what they found; it decides
// nothing that they should.
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/lmittmann/tint"
	"github.com/mattn/go-isatty"

	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/internal/outward"
	"github.com/kernelwright/kernelwright/report"
)

const description = "turns PyTorch reference files into verified, faster kernels"

// grammar is every verb and flag; kong reads it.
type grammar struct {
	Config  string `help:"Settings file." placeholder:"FILE" type:"path" predictor:"file"`
	DataDir string `help:"Where everything is kept." placeholder:"DIR" type:"path" key:"data_dir" predictor:"dir"`
	JSON    bool   `name:"json" help:"Print JSON."`
	Log     string `name:"log-level" help:"What is said on standard error: debug, info, warn or error." placeholder:"LEVEL" key:"log.level"`

	Run        runCmd        `cmd:"" help:"Optimise reference files."`
	Eval       evalCmd       `cmd:"" help:"Judge one candidate against its reference."`
	Audit      auditCmd      `cmd:"" help:"Evaluate candidates that others have published, against what they claim."`
	Bench      benchCmd      `cmd:"" help:"Optimise a folder of references under one or several configurations, and score them."`
	Recheck    recheckCmd    `cmd:"" help:"Certify kernels of other devices on this one."`
	Build      buildCmd      `cmd:"" help:"Say what compilers make of candidates, for any GPU."`
	Inspect    inspectCmd    `cmd:"" help:"Say what reference files are."`
	Baseline   baselineCmd   `cmd:"" help:"Hold candidates against kernels of your own."`
	Daemon     daemonCmd     `cmd:"" help:"Watch folders and optimise what is dropped into them."`
	Queue      queueCmd      `cmd:"" help:"Say in which order a daemon works, and what it leaves."`
	Train      trainCmd      `cmd:"" help:"Train the Coder."`
	Policy     policyCmd     `cmd:"" help:"Keep what was trained, and say which of it serves."`
	MCP        mcpCmd        `cmd:"" name:"mcp" help:"Let an agent outside be the Coder, over the Model Context Protocol."`
	History    historyCmd    `cmd:"" help:"Ask what was tried, and what came of it."`
	Export     exportCmd     `cmd:"" help:"Write the kernel of a run, or of one of its rounds, to a file."`
	Verify     verifyCmd     `cmd:"" help:"Say whether a file and its certificate belong together, and what that claims."`
	Doctor     doctorCmd     `cmd:"" help:"Say what is here, what is missing, and what that costs."`
	Settings   configCmd     `cmd:"" name:"config" help:"Show or check the settings."`
	Completion completionCmd `cmd:"" help:"Print a completion script for a shell."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
}

// app is what every verb is given.
type app struct {
	ctx            context.Context
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
	env            []string
	json           bool
	lines          bool   // JSON is promised as one object a line
	file           string // the settings file asked for
	flags          map[string]string
	flagNames      map[string]string
	kong           *kong.Kong
}

// Run does what the arguments say. Cancelling the context is the first Ctrl-C:
// what is under way is finished or kept, then Run returns. Results go to
// stdout; progress, the log and nothing else to stderr. The error is for
// ExitCode and Explain.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	return runWith(ctx, args, os.Environ(), stdin, stdout, stderr)
}

func runWith(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var g grammar
	helped := false
	k, err := kong.New(&g,
		kong.Name("kernelwright"), kong.Description(description),
		kong.Writers(stdout, stderr), kong.Exit(func(int) { helped = true }),
		kong.NamedMapper("path", paths()), kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
	)
	if err != nil {
		return fmt.Errorf("the command line's grammar: %w", err)
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	kctx, err := k.Parse(joined(args))
	if helped {
		return nil
	}
	a := &app{ctx: ctx, args: args, stdin: stdin, stdout: stdout, stderr: stderr, env: env, kong: k, flags: map[string]string{}, flagNames: map[string]string{}}
	// A line that does not parse may still have asked for JSON.
	a.json = slices.Contains(args, "--json")
	if err == nil {
		a.json, a.file = g.JSON, g.Config
		a.collect(kctx)
		kctx.Bind(a)
		err = kctx.Run()
	}
	if err != nil && a.json {
		_ = a.printLast(map[string]any{}, err) // the error itself is returned either way
	}
	return err
}

// paths reads the names of files. An empty one, as an unset variable of a
// script gives, would be the working folder.
func paths() kong.Mapper {
	all := kong.NewRegistry().RegisterDefaults()
	plain := all.ForNamedType("path", reflect.TypeFor[string]())
	var one kong.MapperFunc = func(ctx *kong.DecodeContext, target reflect.Value) error {
		if target.Kind() == reflect.Slice {
			return all.ForType(target.Type()).Decode(ctx, target) // which comes back here for each
		}
		token := ctx.Scan.Peek()
		name, text := token.Value.(string)
		switch {
		case !text || !token.IsValue():
			return plain.Decode(ctx, target)
		case name == "":
			return errors.New("the name of a file or folder is empty")
		case name != "-":
			name = kong.ExpandPath(name)
		}
		ctx.Scan.Pop()
		target.SetString(name) // by kong's own way, through JSON, bytes that are no UTF-8 would become others
		return nil
	}
	all.RegisterName("path", one)
	return one
}

// joined writes a flag and a negative number as one word, which would otherwise
// be a flag of its own: what is wrong with the number is then said.
func joined(args []string) []string {
	var out []string
	for i, arg := range args {
		if arg == "--" {
			return append(out, args[i:]...)
		}
		if n := len(out); negative.MatchString(arg) && n > 0 && strings.HasPrefix(out[n-1], "--") && !strings.Contains(out[n-1], "=") {
			out[n-1] += "=" + arg
			continue
		}
		out = append(out, arg)
	}
	return out
}

var negative = regexp.MustCompile(`^-[0-9.]`)

// collect takes the flags that set a key, so that the settings know where
// each value came from.
func (a *app) collect(kctx *kong.Context) {
	for _, p := range kctx.Path {
		f := p.Flag
		if f == nil {
			continue
		}
		key := f.Tag.Get("key")
		if key == "" {
			continue
		}
		text := fmt.Sprint(kctx.FlagValue(f))
		if list, ok := kctx.FlagValue(f).([]string); ok {
			// By lines, since a folder's name may hold a comma.
			text = strings.Join(list, "\n") + "\n"
		}
		if key == "judge.name" {
			key = judgeKey(text)
		}
		a.flags[key], a.flagNames[key] = text, "--"+f.Name
	}
}

func (a *app) getenv(name string) string {
	for i := len(a.env) - 1; i >= 0; i-- {
		if k, v, ok := strings.Cut(a.env[i], "="); ok && k == name {
			return v
		}
	}
	return ""
}

// settings reads what is in force.
func (a *app) settings() (config.Config, config.Origins, error) {
	return config.Read(config.Source{
		File: config.FindFile(a.file, a.getenv), Env: a.env, Flags: a.flags, FlagNames: a.flagNames,
	})
}

// logger is standard error as the settings want it.
func (a *app) logger(c config.Config) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Log.Level)); err != nil {
		level = slog.LevelInfo
	}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(cleanJSON{a.stderr}, &slog.HandlerOptions{Level: level}))
	}
	// Names of files and what others said may hold what moves the cursor. The handler
	// ends a text at U+FFFD.
	line := func(s string) string { return strings.ReplaceAll(report.Line(s), "\uFFFD", "⟨U+FFFD⟩") }
	clean := func(_ []string, at slog.Attr) slog.Attr {
		switch v := at.Value.Any().(type) {
		case string:
			at.Value = slog.StringValue(line(v))
		case error:
			at.Value = slog.StringValue(line(v.Error()))
		case []string:
			lines := make([]string, len(v))
			for i, one := range v {
				lines[i] = line(one)
			}
			at.Value = slog.AnyValue(lines)
		}
		return at
	}
	return slog.New(tint.NewTextHandler(a.stderr, &tint.Options{Level: level, TimeFormat: "15:04:05", NoColor: !a.colour(a.stderr), ReplaceAttr: clean}))
}

// cleanJSON writes lines of JSON so that a terminal may show them. Each is
// written at once.
type cleanJSON struct{ to io.Writer }

func (c cleanJSON) Write(b []byte) (int, error) {
	if _, err := c.to.Write(report.CleanJSON(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// terminal reports whether a stream is one: a writer's lines may be redrawn then,
// and behind a reader somebody sits.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

func (a *app) colour(w io.Writer) bool {
	//nolint:misspell // the name of a convention: no-color.org
	return terminal(w) && a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb"
}

// printJSON writes one object and a line feed.
func (a *app) printJSON(v any) error {
	b, err := json.MarshalIndent(outward.Of(v), "", "  ")
	if err != nil {
		return err
	}
	_, err = a.stdout.Write(append(report.CleanJSON(b), '\n'))
	return ignoreClosed(err)
}

// printLast is printJSON of what a command ends with, the failure in it, which it
// returns. Where lines were promised it is one.
func (a *app) printLast(object map[string]any, failed error) error {
	if failed != nil {
		code, text, hint := explain(failed)
		object["error"], object["hint"], object["exit_code"] = text, hint, code
	}
	a.json = false // the object is out; the exit code says the rest
	if a.lines {
		return cmp.Or(a.printLine(object), failed)
	}
	return cmp.Or(a.printJSON(object), failed)
}

// printLine writes one object on one line, for those who read a stream.
func (a *app) printLine(v any) error {
	b, err := json.Marshal(outward.Of(v))
	if err != nil {
		return err
	}
	_, err = a.stdout.Write(append(report.CleanJSON(b), '\n'))
	return ignoreClosed(err)
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// printf writes to stdout; a reader that went away, as head does, is no error.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.stdout, format, args...)
	return ignoreClosed(err)
}

func ignoreClosed(err error) error {
	if errors.Is(err, io.ErrClosedPipe) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
