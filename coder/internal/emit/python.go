// Package emit writes a plan as a candidate: C++ or CUDA for its kernels, and the Python
// around them in the native form.
package emit

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

var deviceLine = regexp.MustCompile(`(?m)^ *device = v_\w+\.device\n`)

// torchNames are operators with a name that people know; all others are
// called as torch.ops.aten.
var torchNames = map[string]string{
	"aten.linear.default": "F.linear", "aten.matmul.default": "torch.matmul", "aten.bmm.default": "torch.bmm", "aten.mm.default": "torch.mm",
	"aten.scaled_dot_product_attention.default": "F.scaled_dot_product_attention",
	"aten.conv1d.default":                       "F.conv1d", "aten.conv2d.default": "F.conv2d", "aten.conv3d.default": "F.conv3d",
	"aten.conv_transpose1d.default": "F.conv_transpose1d", "aten.conv_transpose2d.input": "F.conv_transpose2d", "aten.conv_transpose3d.input": "F.conv_transpose3d",
	"aten.cat.default": "torch.cat", "aten.stack.default": "torch.stack", "aten.embedding.default": "F.embedding",
}

// Python returns the candidate: the kernels and ModelNew around them, in
// the native form, without the comment that states the schedule.
func Python(p *plan.Plan, knobs plan.Knobs, on Target) (string, error) {
	e := &python{plan: p, knobs: knobs, gpu: on.GPU}
	var kernels string
	if on.GPU {
		kernels, e.scratch = emitCUDA(p, knobs, on)
	} else {
		kernels = emitCPP(p, knobs)
	}
	source, err := e.module()
	if err != nil {
		return "", err
	}
	kernels, source = readable(p, numbered(kernels), source)
	var b strings.Builder
	fmt.Fprintf(&b, "%q\n", p.Name+", written by kernelwright's built-in Coder.")
	b.WriteString("import torch\nimport torch.nn as nn\n")
	if strings.Contains(source, "F.") {
		b.WriteString("import torch.nn.functional as F\n")
	}
	// A value that is computed twice must be the same twice, so no product is joined with a sum.
	language := `language="cpp"`
	if on.GPU {
		language = `language="cuda", flags=("-fmad=false",)`
		if knobs.Get("approx", 0) == 1 && slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Kernel != nil && kernelDivides(s.Kernel) }) {
			language = `language="cuda", flags=("-fmad=false", "-prec-div=false", "-prec-sqrt=false")`
		}
	}
	b.WriteString("\nfrom kernelwright import native\n\nlib = native(" + language + ", source=r\"\"\"\n")
	b.WriteString(kernels)
	b.WriteString("\"\"\")\n\n\n" + source)
	return b.String(), nil
}

// Target is what a candidate is written for.
type Target struct {
	GPU             bool
	multiprocessors int
	shared          int // bytes of shared memory of a multiprocessor
	cache           int // bytes of the second-level cache
}

// filled reports whether so many blocks leave less than a quarter of the multiprocessors
// idle, which is better than to cut rows: a group norm of 128 rows of 32,768 took 12.1 us on
// an H200, which has 132, and 17.3 in parts.
func (t Target) filled(blocks int) bool { return 4*blocks >= 3*t.multiprocessors }

type python struct {
	plan    *plan.Plan
	knobs   plan.Knobs
	out     strings.Builder
	gpu     bool
	scratch map[*plan.Kernel][]scratch // of a GPU
}

func (e *python) line(depth int, format string, args ...any) {
	e.out.WriteString(strings.Repeat("    ", depth))
	fmt.Fprintf(&e.out, format, args...)
	e.out.WriteByte('\n')
}

// module returns class ModelNew.
func (e *python) module() (string, error) {
	g := e.plan.Graph
	e.line(0, "class ModelNew(nn.Module):")
	e.line(1, "def __init__(self, *args, **kwargs):")
	e.line(2, "super().__init__()")
	if err := e.containers(); err != nil {
		return "", err
	}
	e.line(0, "")
	e.line(1, "def forward(self, %s):", strings.Join(e.arguments(), ", "))
	if err := e.checks(); err != nil {
		return "", err
	}
	used := map[string]bool{}
	for _, b := range e.buffersRead() {
		used[b.Name] = true
	}
	for _, t := range g.Parameters {
		if used["s_"+t.Name] {
			e.line(2, "s_%s = %s", t.Name, statePath(t))
		}
	}
	for _, t := range g.Constants {
		if !used["s_"+t.Name] {
			continue
		}
		e.line(2, "s_%s = self._constants[%q]", t.Name, t.Name)
		if e.gpu {
			e.line(2, "if s_%s.device != device:", t.Name)
			e.line(3, "s_%s = self._constants[%q] = s_%s.to(device)", t.Name, t.Name, t.Name)
		}
	}
	segments := e.plan.Segments()
	open := false
	for _, st := range e.plan.Steps {
		if st.Kernel != nil {
			if !open {
				e.segment(segments[0])
				segments = segments[1:]
				open = true
			}
			continue
		}
		open = false
		if err := e.call(st.Call); err != nil {
			return "", err
		}
	}
	result, err := e.tree(g.Outputs)
	if err != nil {
		return "", err
	}
	e.line(2, "return %s", result)
	text := e.out.String()
	if strings.Count(text, "device") == 2 { // it is named, and nobody asks for it
		text = deviceLine.ReplaceAllString(text, "")
	}
	return text, nil
}

// containers makes the parameters and buffers under the reference's names.
func (e *python) containers() error {
	made := map[string]bool{}
	for _, t := range e.plan.Graph.Parameters {
		parts := strings.Split(t.State, ".")
		owner := "self"
		for i, name := range parts {
			if !moduleName(name) {
				return fmt.Errorf("the state_dict name %q has no form in Python", t.State)
			}
			if i == len(parts)-1 {
				break
			}
			path := strings.Join(parts[:i+1], ".")
			if !made[path] {
				made[path] = true
				if attribute(name) {
					e.line(2, "%s.%s = nn.Module()", owner, name)
				} else {
					e.line(2, "%s.add_module(%q, nn.Module())", owner, name)
				}
			}
			if attribute(name) {
				owner += "." + name
			} else {
				owner = fmt.Sprintf("self.get_submodule(%q)", path)
			}
		}
		name := parts[len(parts)-1]
		zeros := fmt.Sprintf("torch.zeros(%s, dtype=torch.%s)", shapeText(t.Shape), t.DType)
		if t.DType == string(plan.F32) && len(t.Shape) > 0 {
			zeros = fmt.Sprintf("torch.zeros%s", strings.Replace(shapeText(t.Shape), ",)", ")", 1))
		}
		switch {
		case isParameter(t) && attribute(name) && t.DType == string(plan.F32):
			e.line(2, "%s.%s = nn.Parameter(%s)", owner, name, zeros)
		case isParameter(t):
			e.line(2, "%s.register_parameter(%q, nn.Parameter(%s, requires_grad=%s))", owner, name, zeros, gradient(t.DType))
		default:
			e.line(2, "%s.register_buffer(%q, %s)", owner, name, zeros)
		}
	}
	any := false
	for _, t := range e.plan.Graph.Constants {
		if slices.ContainsFunc(e.buffersRead(), func(b *plan.Buffer) bool { return b.Name == "s_"+t.Name }) {
			if !any {
				e.line(2, "self._constants = {}")
				any = true
			}
			data, err := t.Python()
			if err != nil {
				return err
			}
			e.line(2, "self._constants[%q] = torch.tensor(%s, dtype=torch.%s).reshape(%s)", t.Name, data, t.DType, shapeText(t.Shape))
		}
	}
	return nil
}

// attribute reports whether a part of a state_dict name can be written as one.
func attribute(name string) bool { return plan.Identifier(name) && !slices.Contains(keywords, name) }

func gradient(d string) string {
	if strings.HasPrefix(d, "float") || strings.HasPrefix(d, "bfloat") {
		return "True"
	}
	return "False"
}

// statePath writes a parameter or buffer without the search that attribute
// access of a module is, and whatever its parts are named.
func statePath(t plan.GraphTensor) string {
	parts := strings.Split(t.State, ".")
	out := "self"
	for _, p := range parts[:len(parts)-1] {
		out += fmt.Sprintf("._modules[%q]", p)
	}
	kind := "_buffers"
	if isParameter(t) {
		kind = "_parameters"
	}
	return fmt.Sprintf("%s.%s[%q]", out, kind, parts[len(parts)-1])
}

// isParameter tells parameters from buffers by the prefix that torch.export
// gives their placeholders.
func isParameter(t plan.GraphTensor) bool { return strings.HasPrefix(t.Name, "p_") }

// moduleName reports whether a part of a state_dict name is harmless: a name,
// or the number of a module in a list.
func moduleName(s string) bool {
	if _, err := strconv.ParseUint(s, 10, 32); err == nil {
		return true
	}
	return plan.Identifier(s)
}

func shapeText(shape []int) string {
	parts := make([]string, len(shape))
	for i, d := range shape {
		parts[i] = strconv.Itoa(d)
	}
	if len(parts) == 1 {
		return "(" + parts[0] + ",)"
	}
	return "(" + strings.Join(parts, ", ") + ")"
}

// arguments names forward's positional arguments.
func (e *python) arguments() []string {
	n := 0
	names := map[int]string{}
	for _, in := range e.plan.Graph.Inputs {
		if len(in.Path) == 0 {
			continue
		}
		i := int(pathNumber(in.Path[0]))
		n = max(n, i+1)
		if len(in.Path) == 1 && plan.Identifier(in.Name) {
			names[i] = "v_" + in.Name
		}
	}
	out := make([]string, n)
	for i := range out {
		out[i] = names[i]
		if out[i] == "" {
			out[i] = fmt.Sprintf("arg%d", i)
		}
	}
	return out
}

func pathNumber(v any) float64 {
	switch n := v.(type) {
	case float64:
		return n
	case interface{ Float64() (float64, error) }:
		f, err := n.Float64()
		if err == nil {
			return f
		}
	}
	return 0
}

// checks unpacks the inputs and refuses what the kernels were not made for.
func (e *python) checks() error {
	first := true
	for _, in := range e.plan.Graph.Inputs {
		if len(in.Path) == 0 || !plan.Identifier(in.Name) {
			return fmt.Errorf("input %q has no form in Python", in.Name)
		}
		name := "v_" + in.Name
		if len(in.Path) > 1 {
			at := e.arguments()[int(pathNumber(in.Path[0]))]
			for _, k := range in.Path[1:] {
				if s, ok := k.(string); ok {
					at += fmt.Sprintf("[%s]", strconv.QuoteToASCII(s))
				} else {
					at += fmt.Sprintf("[%d]", int(pathNumber(k)))
				}
			}
			e.line(2, "%s = %s", name, at)
		}
		if !in.IsTensor() {
			want := "None"
			if in.Value != nil {
				text, err := in.Value.Python(nil)
				if err != nil {
					return err
				}
				want = text
			}
			e.line(2, "if %s != %s:", name, want)
			e.line(3, "raise ValueError(%q)", fmt.Sprintf("%s: this kernel was made for %s", in.Name, want))
			continue
		}
		batch := e.plan.Graph.Batch != nil && slices.Contains(e.plan.Graph.Batch.Inputs, in.Name)
		wrong := fmt.Sprintf("%s.shape != %s", name, shapeText(in.Shape))
		want := shapeText(in.Shape)
		if batch {
			if first {
				e.line(2, "batch = %s.shape[0] if %s.dim() else 0", name, name)
				first = false
			}
			wrong = fmt.Sprintf("%s.shape != (batch, %s", name, strings.TrimPrefix(shapeText(append([]int{0}, in.Shape[1:]...)), "(0, "))
			if len(in.Shape) == 1 {
				wrong = fmt.Sprintf("%s.shape != (batch,)", name)
			}
			want = "(batch, " + strings.TrimPrefix(shapeText(append([]int{0}, in.Shape[1:]...)), "(0, ")
			if len(in.Shape) == 1 {
				want = "(batch,)"
			}
		}
		if !e.read(name) || in.DType == string(plan.Bool) { // who calls a kernel with another type is told
			wrong += fmt.Sprintf(" or %s.dtype != torch.%s", name, in.DType)
		}
		e.line(2, "if %s:", wrong)
		e.line(3, "raise ValueError(\"%s: this kernel was made for %s of shape %s\")", in.Name, in.DType, want)
		if e.read(name) {
			e.line(2, "%s = %s.contiguous()", name, name)
		}
	}
	return e.place()
}

// place names the device, and refuses batches whose positions a GPU's kernels
// cannot count.
func (e *python) place() error {
	if !e.gpu {
		return nil
	}
	for _, in := range e.plan.Graph.Inputs {
		if in.IsTensor() {
			e.line(2, "device = v_%s.device", in.Name)
			break
		}
	}
	if e.plan.Graph.Batch == nil {
		return nil
	}
	if most := mostBatch(e.plan); most > 0 {
		e.line(2, "if batch > %d:", most)
		e.line(3, "raise ValueError(f\"this kernel was made for a batch of up to %d, not {batch}\")", most)
	}
	return nil
}

// read reports whether a kernel reads the buffer.
func (e *python) read(name string) bool {
	for _, s := range e.plan.Steps {
		if s.Kernel != nil && slices.ContainsFunc(s.Kernel.Buffers(), func(b *plan.Buffer) bool { return b.Name == name }) {
			return true
		}
	}
	return false
}

// buffersRead returns the buffers of the module that anything reads.
func (e *python) buffersRead() []*plan.Buffer {
	var out []*plan.Buffer
	for _, s := range e.plan.Steps {
		if s.Kernel != nil {
			out = append(out, s.Kernel.Buffers()...)
			continue
		}
		for _, v := range s.Call.Args {
			out = append(out, v.Buf)
		}
	}
	for _, v := range e.plan.Outputs {
		out = append(out, v.Buf)
	}
	return out
}

func batched(shape []int) string {
	rest := strings.TrimPrefix(shapeText(append([]int{0}, shape[1:]...)), "(0,")
	return "(batch," + rest
}

func (e *python) segment(s plan.Segment) {
	var args []string
	for _, b := range s.Buffers {
		written := slices.ContainsFunc(s.Kernels, func(k *plan.Kernel) bool { return k.Writes(b) })
		if written {
			shape := shapeText(b.Shape)
			if b.Batch {
				shape = batched(b.Shape)
			}
			if like := e.like(b); like != "" {
				e.line(2, "%s = torch.empty_like(%s)", b.Name, like)
			} else {
				e.line(2, "%s = torch.empty(%s, dtype=torch.%s%s)", b.Name, shape, b.DType, e.device())
			}
		}
		args = append(args, b.Name)
	}
	for _, k := range s.Kernels {
		for _, m := range e.scratch[k] {
			n := strconv.Itoa(m.bytes)
			if m.batch {
				n = fmt.Sprintf("batch * %d", m.bytes/e.plan.Graph.Batch.Size)
			}
			e.line(2, "%s = torch.empty((%s,), dtype=torch.uint8%s)", m.name, n, e.device())
			args = append(args, m.name)
		}
	}
	if s.Batch {
		args = append(args, "batch")
	}
	e.line(2, "lib.%s(%s)", s.Name, strings.Join(args, ", "))
}

// like returns the input that is as a buffer is: of its shape and type, and contiguous.
func (e *python) like(b *plan.Buffer) string {
	for _, in := range e.plan.Graph.Inputs {
		name := "v_" + in.Name
		batch := e.plan.Graph.Batch != nil && slices.Contains(e.plan.Graph.Batch.Inputs, in.Name)
		if in.IsTensor() && e.read(name) && in.DType == string(b.DType) && slices.Equal(in.Shape, b.Shape) && batch == b.Batch {
			return name
		}
	}
	return ""
}

// device is where new tensors go, as an argument.
func (e *python) device() string {
	if e.gpu {
		return ", device=device"
	}
	return ""
}

func (e *python) call(c *plan.TorchCall) error {
	ref := func(a plan.Arg) (string, error) {
		v := c.Args[a.Reference()]
		if v == nil {
			return "", fmt.Errorf("%s takes %s, which is not in memory", c.Node.Op, a.S)
		}
		return tensorText(v), nil
	}
	var args []string
	for _, a := range c.Node.Args {
		s, err := a.Python(ref)
		if err != nil {
			return err
		}
		args = append(args, s)
	}
	for _, k := range slices.Sorted(maps.Keys(c.Node.Kwargs)) {
		if k == "pin_memory" || k == "device" {
			continue
		}
		if !plan.Identifier(k) {
			return fmt.Errorf("%s takes an argument named %q", c.Node.Op, k)
		}
		s, err := c.Node.Kwargs[k].Python(ref)
		if err != nil {
			return err
		}
		args = append(args, k+"="+s)
	}
	f := torchNames[c.Node.Op]
	if f == "" {
		for _, part := range strings.Split(c.Node.Op, ".") {
			if !plan.Identifier(part) {
				return fmt.Errorf("operator %q has no form in Python", c.Node.Op)
			}
		}
		f = "torch.ops." + c.Node.Op
	}
	target := strings.Join(c.Vars, ", ")
	if c.Node.Many && len(c.Vars) == 1 {
		target += ","
	}
	e.line(2, "%s = %s(%s)", target, f, strings.Join(args, ", "))
	for i, b := range c.Outs {
		if b != nil && e.read(b.Name) {
			e.line(2, "%s = %s.contiguous()", c.Vars[i], c.Vars[i])
		}
	}
	return nil
}

// tensorText writes a load of memory as a tensor.
func tensorText(v *plan.Value) string {
	b := v.Buf
	s, _ := plan.Strides(v)
	off := v.Idx[0].Off
	dense := plan.Contiguous(v.Shape)
	same := off == 0 && plan.Numel(v.Shape) == plan.Numel(b.Shape)
	for i := range s {
		same = same && (s[i] == dense[i] || v.Shape[i] == 1)
	}
	if same && slices.Equal(v.Shape, b.Shape) {
		return b.Name
	}
	shape := shapeText(v.Shape)
	if b.Batch && len(v.Shape) > 0 && v.Shape[0] == b.Shape[0] {
		shape = batched(v.Shape)
	}
	if same {
		return fmt.Sprintf("%s.view(%s)", b.Name, shape)
	}
	return fmt.Sprintf("%s.as_strided(%s, %s, %d)", b.Name, shape, shapeText(s), off)
}

func (e *python) tree(t plan.Tree) (string, error) {
	join := func(items []plan.Tree) (string, error) {
		var out []string
		for _, c := range items {
			s, err := e.tree(c)
			if err != nil {
				return "", err
			}
			out = append(out, s)
		}
		return strings.Join(out, ", "), nil
	}
	switch t.Kind {
	case "value":
		return t.Value.Python(func(a plan.Arg) (string, error) {
			v := e.plan.Outputs[a.Reference()]
			if v == nil {
				return "", fmt.Errorf("forward returns %s, which is not in memory", a.S)
			}
			return tensorText(v), nil
		})
	case "tuple":
		s, err := join(t.Tuple)
		if len(t.Tuple) == 1 {
			s += ","
		}
		return "(" + s + ")", err
	case "list":
		s, err := join(t.List)
		return "[" + s + "]", err
	}
	var items []string
	for _, i := range t.Dict {
		s, err := e.tree(i.Tree)
		if err != nil {
			return "", err
		}
		items = append(items, strconv.QuoteToASCII(i.Key)+": "+s)
	}
	return "{" + strings.Join(items, ", ") + "}", nil
}
