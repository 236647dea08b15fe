package coder

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// emitPython returns the candidate: the kernels and ModelNew around them, in
// the native form, without the comment that states the schedule.
func emitPython(p *plan, knobs schedule, on target) (string, error) {
	e := &python{plan: p, knobs: knobs, gpu: on.gpu}
	var kernels string
	if on.gpu {
		kernels, e.scratch = emitCUDA(p, knobs, on)
	} else {
		kernels = emitCPP(p, knobs)
	}
	source, err := e.module()
	if err != nil {
		return "", err
	}
	kernels, source = readable(p, kernels, source)
	var b strings.Builder
	fmt.Fprintf(&b, "%q\n", p.name+", written by kernelwright's built-in Coder.")
	b.WriteString("import torch\nimport torch.nn as nn\n")
	if strings.Contains(source, "F.") {
		b.WriteString("import torch.nn.functional as F\n")
	}
	// A value that is computed twice must be the same twice, so no product is joined with a sum.
	language := `language="cpp"`
	if on.gpu {
		language = `language="cuda", flags=("-fmad=false",)`
		if knobs.get("approx", 0) == 1 && slices.ContainsFunc(p.steps, func(s step) bool { return s.kernel != nil && kernelDivides(s.kernel) }) {
			language = `language="cuda", flags=("-fmad=false", "-prec-div=false", "-prec-sqrt=false")`
		}
	}
	b.WriteString("\nfrom kernelwright import native\n\nlib = native(" + language + ", source=r\"\"\"\n")
	b.WriteString(kernels)
	b.WriteString("\"\"\")\n\n\n" + source)
	return b.String(), nil
}

// target is what a candidate is written for.
type target struct {
	gpu             bool
	multiprocessors int
	shared          int // bytes of shared memory of a multiprocessor
	cache           int // bytes of the second-level cache
}

// filled reports whether so many blocks leave less than a quarter of the multiprocessors
// idle, which is better than to cut rows: a group norm of 128 rows of 32,768 took 12.1 us on
// an H200, which has 132, and 17.3 in parts.
func (t target) filled(blocks int) bool { return 4*blocks >= 3*t.multiprocessors }

type python struct {
	plan    *plan
	knobs   schedule
	out     strings.Builder
	gpu     bool
	scratch map[*kernel][]scratch // of a GPU
}

func (e *python) line(depth int, format string, args ...any) {
	e.out.WriteString(strings.Repeat("    ", depth))
	fmt.Fprintf(&e.out, format, args...)
	e.out.WriteByte('\n')
}

// module returns class ModelNew.
func (e *python) module() (string, error) {
	g := e.plan.g
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
		used[b.name] = true
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
	segments := e.plan.segments()
	open := false
	for _, st := range e.plan.steps {
		if st.kernel != nil {
			if !open {
				e.segment(segments[0])
				segments = segments[1:]
				open = true
			}
			continue
		}
		open = false
		if err := e.call(st.call); err != nil {
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
	for _, t := range e.plan.g.Parameters {
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
		if t.DType == string(f32) && len(t.Shape) > 0 {
			zeros = fmt.Sprintf("torch.zeros%s", strings.Replace(shapeText(t.Shape), ",)", ")", 1))
		}
		switch {
		case isParameter(t) && attribute(name) && t.DType == string(f32):
			e.line(2, "%s.%s = nn.Parameter(%s)", owner, name, zeros)
		case isParameter(t):
			e.line(2, "%s.register_parameter(%q, nn.Parameter(%s, requires_grad=%s))", owner, name, zeros, gradient(t.DType))
		default:
			e.line(2, "%s.register_buffer(%q, %s)", owner, name, zeros)
		}
	}
	any := false
	for _, t := range e.plan.g.Constants {
		if slices.ContainsFunc(e.buffersRead(), func(b *buffer) bool { return b.name == "s_"+t.Name }) {
			if !any {
				e.line(2, "self._constants = {}")
				any = true
			}
			data, err := arg{Kind: argList, List: t.Data}.python(nil)
			if err != nil {
				return err
			}
			e.line(2, "self._constants[%q] = torch.tensor(%s, dtype=torch.%s).reshape(%s)", t.Name, data, t.DType, shapeText(t.Shape))
		}
	}
	return nil
}

// attribute reports whether a part of a state_dict name can be written as one.
func attribute(name string) bool { return identifier(name) && !slices.Contains(keywords, name) }

func gradient(d string) string {
	if strings.HasPrefix(d, "float") || strings.HasPrefix(d, "bfloat") {
		return "True"
	}
	return "False"
}

// statePath writes a parameter or buffer without the search that attribute
// access of a module is, and whatever its parts are named.
func statePath(t graphTensor) string {
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
func isParameter(t graphTensor) bool { return strings.HasPrefix(t.Name, "p_") }

// moduleName reports whether a part of a state_dict name is harmless: a name,
// or the number of a module in a list.
func moduleName(s string) bool {
	if _, err := strconv.ParseUint(s, 10, 32); err == nil {
		return true
	}
	return identifier(s)
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
	for _, in := range e.plan.g.Inputs {
		if len(in.Path) == 0 {
			continue
		}
		i := int(pathNumber(in.Path[0]))
		n = max(n, i+1)
		if len(in.Path) == 1 && identifier(in.Name) {
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
	for _, in := range e.plan.g.Inputs {
		if len(in.Path) == 0 || !identifier(in.Name) {
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
		if !in.isTensor() {
			want := "None"
			if in.Value != nil {
				text, err := in.Value.python(nil)
				if err != nil {
					return err
				}
				want = text
			}
			e.line(2, "if %s != %s:", name, want)
			e.line(3, "raise ValueError(%q)", fmt.Sprintf("%s: this kernel was made for %s", in.Name, want))
			continue
		}
		batch := e.plan.g.Batch != nil && slices.Contains(e.plan.g.Batch.Inputs, in.Name)
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
		if !e.read(name) || in.DType == string(boole) { // who calls a kernel with another type is told
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
	for _, in := range e.plan.g.Inputs {
		if in.isTensor() {
			e.line(2, "device = v_%s.device", in.Name)
			break
		}
	}
	if e.plan.g.Batch == nil {
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
	for _, s := range e.plan.steps {
		if s.kernel != nil && slices.ContainsFunc(s.kernel.buffers(), func(b *buffer) bool { return b.name == name }) {
			return true
		}
	}
	return false
}

// buffersRead returns the buffers of the module that anything reads.
func (e *python) buffersRead() []*buffer {
	var out []*buffer
	for _, s := range e.plan.steps {
		if s.kernel != nil {
			out = append(out, s.kernel.buffers()...)
			continue
		}
		for _, v := range s.call.args {
			out = append(out, v.buf)
		}
	}
	for _, v := range e.plan.outputs {
		out = append(out, v.buf)
	}
	return out
}

func batched(shape []int) string {
	rest := strings.TrimPrefix(shapeText(append([]int{0}, shape[1:]...)), "(0,")
	return "(batch," + rest
}

func (e *python) segment(s segment) {
	var args []string
	for _, b := range s.buffers {
		written := slices.ContainsFunc(s.kernels, func(k *kernel) bool { return k.writes(b) })
		if written {
			shape := shapeText(b.shape)
			if b.batch {
				shape = batched(b.shape)
			}
			if like := e.like(b); like != "" {
				e.line(2, "%s = torch.empty_like(%s)", b.name, like)
			} else {
				e.line(2, "%s = torch.empty(%s, dtype=torch.%s%s)", b.name, shape, b.dtype, e.device())
			}
		}
		args = append(args, b.name)
	}
	for _, k := range s.kernels {
		for _, m := range e.scratch[k] {
			n := strconv.Itoa(m.bytes)
			if m.batch {
				n = fmt.Sprintf("batch * %d", m.bytes/e.plan.g.Batch.Size)
			}
			e.line(2, "%s = torch.empty((%s,), dtype=torch.uint8%s)", m.name, n, e.device())
			args = append(args, m.name)
		}
	}
	if s.batch {
		args = append(args, "batch")
	}
	e.line(2, "lib.%s(%s)", s.name, strings.Join(args, ", "))
}

// like returns the input that is as a buffer is: of its shape and type, and contiguous.
func (e *python) like(b *buffer) string {
	for _, in := range e.plan.g.Inputs {
		name := "v_" + in.Name
		batch := e.plan.g.Batch != nil && slices.Contains(e.plan.g.Batch.Inputs, in.Name)
		if in.isTensor() && e.read(name) && in.DType == string(b.dtype) && slices.Equal(in.Shape, b.shape) && batch == b.batch {
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

func (e *python) call(c *torchCall) error {
	ref := func(a arg) (string, error) {
		v := c.args[a.reference()]
		if v == nil {
			return "", fmt.Errorf("%s takes %s, which is not in memory", c.node.Op, a.S)
		}
		return tensorText(v), nil
	}
	var args []string
	for _, a := range c.node.Args {
		s, err := a.python(ref)
		if err != nil {
			return err
		}
		args = append(args, s)
	}
	for _, k := range slices.Sorted(maps.Keys(c.node.Kwargs)) {
		if k == "pin_memory" || k == "device" {
			continue
		}
		if !identifier(k) {
			return fmt.Errorf("%s takes an argument named %q", c.node.Op, k)
		}
		s, err := c.node.Kwargs[k].python(ref)
		if err != nil {
			return err
		}
		args = append(args, k+"="+s)
	}
	f := torchNames[c.node.Op]
	if f == "" {
		for _, part := range strings.Split(c.node.Op, ".") {
			if !identifier(part) {
				return fmt.Errorf("operator %q has no form in Python", c.node.Op)
			}
		}
		f = "torch.ops." + c.node.Op
	}
	target := strings.Join(c.vars, ", ")
	if c.node.Many && len(c.vars) == 1 {
		target += ","
	}
	e.line(2, "%s = %s(%s)", target, f, strings.Join(args, ", "))
	for i, b := range c.outs {
		if b != nil && e.read(b.name) {
			e.line(2, "%s = %s.contiguous()", c.vars[i], c.vars[i])
		}
	}
	return nil
}

// tensorText writes a load of memory as a tensor.
func tensorText(v *value) string {
	b := v.buf
	s, _ := strides(v)
	off := v.idx[0].off
	dense := contiguous(v.shape)
	same := off == 0 && numel(v.shape) == numel(b.shape)
	for i := range s {
		same = same && (s[i] == dense[i] || v.shape[i] == 1)
	}
	if same && slices.Equal(v.shape, b.shape) {
		return b.name
	}
	shape := shapeText(v.shape)
	if b.batch && len(v.shape) > 0 && v.shape[0] == b.shape[0] {
		shape = batched(v.shape)
	}
	if same {
		return fmt.Sprintf("%s.view(%s)", b.name, shape)
	}
	return fmt.Sprintf("%s.as_strided(%s, %s, %d)", b.name, shape, shapeText(s), off)
}

func (e *python) tree(t tree) (string, error) {
	join := func(items []tree) (string, error) {
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
	switch t.kind {
	case "value":
		return t.Value.python(func(a arg) (string, error) {
			v := e.plan.outputs[a.reference()]
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
