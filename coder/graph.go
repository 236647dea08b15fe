package coder

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// graph is the captured operator graph of a task; hwfeedback/harness/kwharness/task/capture.py
// documents its JSON.
type graph struct {
	Inputs     []graphInput  `json:"inputs"`
	Parameters []graphTensor `json:"parameters"`
	Constants  []graphTensor `json:"constants"`
	Nodes      []graphNode   `json:"nodes"`
	Outputs    tree          `json:"outputs"`
	Batch      *struct {
		Size   int      `json:"size"`
		Inputs []string `json:"inputs"`
	} `json:"batch"`
}

type tensorMeta struct {
	Shape   []int  `json:"shape"`
	DType   string `json:"dtype"`
	Strides []int  `json:"strides"`
	Batch   bool   `json:"batch"` // the leading dimension is the batch
}

type graphInput struct {
	tensorMeta
	Name  string `json:"name"`
	Path  []any  `json:"path"` // json.Number or string
	Value *arg   `json:"value"`
	none  bool   // the value is None
}

func (g *graphInput) UnmarshalJSON(b []byte) error {
	type plain graphInput
	if err := decode(b, (*plain)(g)); err != nil {
		return err
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(b, &keys); err != nil {
		return err
	}
	if v, ok := keys["value"]; ok && string(v) == "null" {
		g.none = true
	}
	return nil
}

// isTensor reports whether the input is a tensor rather than a fixed value.
func (g graphInput) isTensor() bool { return g.Value == nil && !g.none }

type graphTensor struct {
	tensorMeta
	Name  string `json:"name"`
	State string `json:"state"`
	Data  []arg  `json:"data"`
}

type graphNode struct {
	Name    string         `json:"name"`
	Op      string         `json:"op"`
	Args    []arg          `json:"args"`
	Kwargs  map[string]arg `json:"kwargs"`
	Outputs []tensorMeta   `json:"outputs"`
	Many    bool           `json:"many"`
}

// argKind is which JSON form an argument has.
type argKind int

const (
	argNone argKind = iota
	argBool
	argInt
	argFloat
	argString
	argRef
	argDType
	argTorch // a name inside torch: a memory format or a layout
	argDevice
	argList
)

// arg is one argument of a node.
type arg struct {
	Kind argKind
	Bool bool
	Int  int64
	F    float64
	S    string // string, dtype, torch name, or the name referred to
	Item int    // of a reference to one of several outputs; -1 for the whole
	List []arg
}

func decode(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(v)
}

func (a *arg) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return fmt.Errorf("empty argument")
	}
	switch b[0] {
	case 'n':
		*a = arg{}
	case 't', 'f':
		*a = arg{Kind: argBool, Bool: b[0] == 't'}
	case '"':
		*a = arg{Kind: argString}
		return json.Unmarshal(b, &a.S)
	case '[':
		*a = arg{Kind: argList}
		return json.Unmarshal(b, &a.List)
	case '{':
		var o struct {
			Ref, DType, Device, Torch, Float *string
			Item                             *int
		}
		if err := json.Unmarshal(b, &o); err != nil {
			return err
		}
		switch {
		case o.Ref != nil:
			*a = arg{Kind: argRef, S: *o.Ref, Item: -1}
			if o.Item != nil {
				a.Item = *o.Item
			}
		case o.DType != nil:
			*a = arg{Kind: argDType, S: *o.DType}
		case o.Device != nil:
			*a = arg{Kind: argDevice, S: *o.Device}
		case o.Torch != nil:
			*a = arg{Kind: argTorch, S: *o.Torch}
		case o.Float != nil:
			f, err := strconv.ParseFloat(*o.Float, 64)
			if err != nil {
				return err
			}
			*a = arg{Kind: argFloat, F: f}
		default:
			return fmt.Errorf("unknown argument %s", b)
		}
	default:
		s := string(b)
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			*a = arg{Kind: argInt, Int: i, F: float64(i)}
			return nil
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return err
		}
		*a = arg{Kind: argFloat, F: f}
	}
	return nil
}

// reference names one output of a node or an input.
type reference struct {
	name string
	item int
}

func (a arg) reference() reference { return reference{a.S, max(a.Item, 0)} }

// number returns the argument as a scalar.
func (a arg) number() (float64, bool) {
	switch a.Kind {
	case argInt, argFloat:
		return a.F, true
	case argBool:
		if a.Bool {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// ints returns a list of integers; a single integer is a list of one.
func (a arg) ints() ([]int, bool) {
	if a.Kind == argInt {
		return []int{int(a.Int)}, true
	}
	if a.Kind != argList {
		return nil, false
	}
	out := make([]int, len(a.List))
	for i, v := range a.List {
		if v.Kind != argInt {
			return nil, false
		}
		out[i] = int(v.Int)
	}
	return out, true
}

// python returns the argument as a Python expression, references resolved by
// name.
func (a arg) python(ref func(arg) (string, error)) (string, error) {
	switch a.Kind {
	case argNone:
		return "None", nil
	case argBool:
		if a.Bool {
			return "True", nil
		}
		return "False", nil
	case argInt:
		return strconv.FormatInt(a.Int, 10), nil
	case argFloat:
		return pythonFloat(a.F), nil
	case argString:
		return strconv.QuoteToASCII(a.S), nil
	case argRef:
		return ref(a)
	case argDType, argTorch:
		if !identifier(a.S) {
			return "", fmt.Errorf("%q is no name in torch", a.S)
		}
		return "torch." + a.S, nil
	case argDevice:
		return strconv.QuoteToASCII(a.S), nil
	}
	out := "["
	for i, v := range a.List {
		s, err := v.python(ref)
		if err != nil {
			return "", err
		}
		if i > 0 {
			out += ", "
		}
		out += s
	}
	return out + "]", nil
}

func pythonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return `float("nan")`
	case math.IsInf(f, 1):
		return `float("inf")`
	case math.IsInf(f, -1):
		return `float("-inf")`
	}
	s := strconv.FormatFloat(f, 'g', -1, 64)
	if f == math.Trunc(f) && !bytes.ContainsAny([]byte(s), ".e") {
		s += ".0"
	}
	return s
}

// identifier reports whether s is a plain ASCII name, as opposed to text that
// could smuggle code into a generated file.
func identifier(s string) bool {
	for i, r := range s {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// tree is what forward returns: containers with references as leaves.
type tree struct {
	Value *arg
	Tuple []tree
	List  []tree
	Dict  []treeItem
	kind  string
}

type treeItem struct {
	Key  string
	Tree tree
}

func (t *tree) UnmarshalJSON(b []byte) error {
	var o map[string]json.RawMessage
	if err := json.Unmarshal(b, &o); err != nil {
		return err
	}
	for kind, raw := range o {
		t.kind = kind
		switch kind {
		case "value":
			t.Value = new(arg)
			return t.Value.UnmarshalJSON(raw)
		case "tuple":
			return json.Unmarshal(raw, &t.Tuple)
		case "list":
			return json.Unmarshal(raw, &t.List)
		case "dict":
			var items [][2]json.RawMessage
			if err := json.Unmarshal(raw, &items); err != nil {
				return err
			}
			for _, i := range items {
				var item treeItem
				if err := json.Unmarshal(i[0], &item.Key); err != nil {
					return err
				}
				if err := json.Unmarshal(i[1], &item.Tree); err != nil {
					return err
				}
				t.Dict = append(t.Dict, item)
			}
			return nil
		}
	}
	return fmt.Errorf("unknown output %s", b)
}

// leaves calls f for each leaf, in order.
func (t tree) leaves(f func(arg) error) error {
	if t.Value != nil {
		return f(*t.Value)
	}
	for _, c := range t.Tuple {
		if err := c.leaves(f); err != nil {
			return err
		}
	}
	for _, c := range t.List {
		if err := c.leaves(f); err != nil {
			return err
		}
	}
	for _, c := range t.Dict {
		if err := c.Tree.leaves(f); err != nil {
			return err
		}
	}
	return nil
}

// decodeGraph reads a captured graph.
func decodeGraph(b []byte) (*graph, error) {
	g := new(graph)
	if err := json.Unmarshal(b, g); err != nil {
		return nil, fmt.Errorf("captured graph: %w", err)
	}
	for _, n := range g.Nodes {
		if !identifier(n.Name) {
			return nil, fmt.Errorf("captured graph: %q is no name", n.Name)
		}
	}
	var err error
	check := func(m tensorMeta) {
		n := 1
		for _, d := range m.Shape {
			if d < 0 || d > maxElements || (d > 0 && n > maxElements/d) {
				err = fmt.Errorf("captured graph: a tensor of shape %v", m.Shape)
				return
			}
			n *= max(d, 1)
		}
		if len(m.Shape) > maxRank {
			err = fmt.Errorf("captured graph: a tensor of %d dimensions", len(m.Shape))
		}
	}
	for _, i := range g.Inputs {
		check(i.tensorMeta)
	}
	for _, t := range slices.Concat(g.Parameters, g.Constants) {
		check(t.tensorMeta)
	}
	for _, n := range g.Nodes {
		for _, o := range n.Outputs {
			check(o)
		}
	}
	return g, err
}

// What a graph that came from outside may hold.
const (
	maxElements = 1 << 40
	maxRank     = 16
)
