package report

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// Take is what a run leaves to take home, and how it is used.
type Take struct {
	Links    []TakeLink // of the downloads, on a page that has them
	Use      string     // Python that calls it
	Commands []TakeCommand
	Slower   string // the baseline that is faster; empty: none is
}

// TakeLink is a download.
type TakeLink struct{ To, Name, Note string }

// TakeCommand is a command with what it does.
type TakeCommand struct{ Command, Does string }

var noModule = regexp.MustCompile(`[^A-Za-z0-9_]+`)

// newTake returns nil where a run has no certified kernel.
func newTake(d Data) *Take {
	best, v, ok := Best(d.Rounds)
	if !ok || v.Status != kernelwright.Certified {
		return nil
	}
	module := noModule.ReplaceAllString(name(d), "_")
	if module == "" || module[0] >= '0' && module[0] <= '9' {
		module = "_" + module
	}
	var b strings.Builder
	fmt.Fprintf(&b, "import torch\n\nfrom %s import get_init_inputs, get_inputs  # your reference\nfrom %s_best import ModelNew  # the kernel, saved as %s_best.py\n\nkernel = ModelNew(*get_init_inputs())\n", module, module, module)
	if len(d.Task.Parameters) > 0 {
		b.WriteString("# kernel.load_state_dict(model.state_dict())  # the weights of a Model\n")
	}
	b.WriteString("with torch.no_grad():\n    y = kernel(*get_inputs())\n")
	slower := ""
	if !HandedOut(v) {
		slower = Against(v.Speedup)
	}
	t := &Take{Slower: slower, Use: b.String()}
	if slower != "" {
		t.Commands = []TakeCommand{{Export(d.Run.ID, best.Index), "writes the file"}}
	}
	t.Commands = append(t.Commands, []TakeCommand{
		{"kernelwright verify FILE", "says whether the file and its certificate belong together"},
		{fmt.Sprintf("kernelwright export %d --as custom-op --out %s_op.py", d.Run.ID, module), "makes an operator of it that torch.compile takes into its graph"},
		{fmt.Sprintf("kernelwright export %d --as package --out %s", d.Run.ID, module), "makes a package that pip installs"},
	}...)
	return t
}
