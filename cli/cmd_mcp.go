package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/kernelwright/kernelwright/judge"
	"github.com/kernelwright/kernelwright/mcp"
)

type mcpCmd struct {
	Root string `help:"The folder whose references an agent may name by path; none unless given." placeholder:"DIR" type:"path" predictor:"dir"`
	Out  string `help:"Where results go; else beside the reference, or into the data folder for one without a file." placeholder:"DIR" type:"path" key:"watch.output_dir" predictor:"dir"`
	deviceFlags
}

// Help is shown below the flags.
func (mcpCmd) Help() string {
	return "Speaks the Model Context Protocol on standard input and output, for a client that starts it: docs/mcp.md says how to register it in one. An agent's work on a task is a run in the history, which goes on when the agent comes back. A daemon may work on the same data folder meanwhile; measuring takes turns."
}

// Run serves one client, until it goes away.
func (c mcpCmd) Run(a *app) (err error) {
	a.json = false // standard output is the protocol's
	var root *os.Root
	if c.Root != "" {
		if root, err = os.OpenRoot(c.Root); err != nil {
			what := "cannot be opened: " + err.Error()
			if errors.Is(err, fs.ErrNotExist) {
				what = "is not there"
			}
			return usage(fmt.Sprintf("the folder %s %s", c.Root, what), "--root names the folder with the references")
		}
		defer func() { err = errors.Join(err, root.Close()) }()
	}
	// No lock: a client keeps its server for days, and a daemon is to work beside
	// it. Devices have leases, and each run is held by itself.
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if r.config.Sandbox != "strict" {
		return usage(fmt.Sprintf("the sandbox is %s, and candidates of an agent outside run in the strict one alone", r.config.Sandbox), "give --sandbox strict")
	}
	w, err := newWorkshop(r, root, c.Root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if terminal(a.stdin) {
		fmt.Fprintln(a.stderr, "waiting for a client's messages on standard input; docs/mcp.md says how to register kernelwright in one")
	}
	in, ok := a.stdin.(io.ReadCloser)
	if !ok {
		in = io.NopCloser(a.stdin)
	}
	// A client that goes away while it is answered is no reason to end by a signal,
	// with processes that measure.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	err = mcp.New(w, r.store, judge.Rules{}).Run(a.ctx, in, unclosed{a.stdout})
	if a.ctx.Err() != nil {
		return errInterrupted
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return &Error{
			Code: ExitFailure,
			Text: "the client sent what is no message of the protocol",
			Err:  err,
			Hint: "a client sends JSON-RPC, a message a line: docs/mcp.md says how to register kernelwright in one",
		}
	}
	return nil
}

// unclosed is standard output, which is not the protocol's to close.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// below reports whether a file lies below the root folder.
func below(root *os.Root, folder, path string) bool {
	if root == nil || path == "" {
		return false
	}
	rel, err := filepath.Rel(folder, path)
	if err != nil || !filepath.IsLocal(rel) {
		return false
	}
	_, err = root.Stat(filepath.Dir(rel)) // no link leads out on the way
	return err == nil
}
