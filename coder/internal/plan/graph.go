package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Graph is the captured operator graph of a task; hwfeedback/harness/kwharness/base/graph.py
// documents its JSON.
type Graph struct {
	Inputs     []GraphInput  `json:"inputs"`
	Parameters []GraphTensor `json:"parameters"`
	Constants  []GraphTensor `json:"constants"`
	Nodes      []GraphNode   `json:"nodes"`
	Outputs    Tree          `json:"outputs"`
	Batch      *struct {
		Size   int      `json:"size"`
		Inputs []string `json:"inputs"`
	} `json:"batch"`
}

// TensorMeta is what a graph says of a tensor.
type TensorMeta struct {
	Shape   []int  `json:"shape"`
	DType   string `json:"dtype"`
	Strides []int  `json:"strides"`
	Batch   bool   `json:"batch"` // the leading dimension is the batch
}

// GraphInput is an input of forward.
type GraphInput struct {
	TensorMeta
	Name  string `json:"name"`
	Path  []any  `json:"path"` // json.Number or string
	Value *Arg   `json:"value"`
	none  bool   // the value is None
}

// UnmarshalJSON tells an input that is None from a tensor.
func (g *GraphInput) UnmarshalJSON(b []byte) error {
	type plain GraphInput
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

// IsTensor reports whether the input is a tensor rather than a fixed value.
func (g GraphInput) IsTensor() bool { return g.Value == nil && !g.none }

// GraphTensor is a parameter, a buffer or a constant of the module.
type GraphTensor struct {
	TensorMeta
	Name  string `json:"name"`
	State string `json:"state"`
	Data  []Arg  `json:"data"`
}

// Python returns the elements of a constant as a list in Python.
func (t GraphTensor) Python() (string, error) { return Arg{Kind: argList, List: t.Data}.Python(nil) }

// GraphNode is one operator.
type GraphNode struct {
	Name    string         `json:"name"`
	Op      string         `json:"op"`
	Args    []Arg          `json:"args"`
	Kwargs  map[string]Arg `json:"kwargs"`
	Outputs []TensorMeta   `json:"outputs"`
	Many    bool           `json:"many"`
}

// argKind is which JSON form an argument has.
type argKind int

// The forms of arguments.
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

// Arg is one argument of a node.
type Arg struct {
	Kind argKind
	Bool bool
	Int  int64
	F    float64
	S    string // string, dtype, torch name, or the name referred to
	Item int    // of a reference to one of several outputs; -1 for the whole
	List []Arg
}

func decode(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return d.Decode(v)
}

// UnmarshalJSON reads an argument in any of its forms.
func (a *Arg) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return fmt.Errorf("empty argument")
	}
	switch b[0] {
	case 'n':
		*a = Arg{}
	case 't', 'f':
		*a = Arg{Kind: argBool, Bool: b[0] == 't'}
	case '"':
		*a = Arg{Kind: argString}
		return json.Unmarshal(b, &a.S)
	case '[':
		*a = Arg{Kind: argList}
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
			*a = Arg{Kind: argRef, S: *o.Ref, Item: -1}
			if o.Item != nil {
				a.Item = *o.Item
			}
		case o.DType != nil:
			*a = Arg{Kind: argDType, S: *o.DType}
		case o.Device != nil:
			*a = Arg{Kind: argDevice, S: *o.Device}
		case o.Torch != nil:
			*a = Arg{Kind: argTorch, S: *o.Torch}
		case o.Float != nil:
			f, err := strconv.ParseFloat(*o.Float, 64)
			if err != nil {
				return err
			}
			*a = Arg{Kind: argFloat, F: f}
		default:
			return fmt.Errorf("unknown argument %s", b)
		}
	default:
		s := string(b)
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			*a = Arg{Kind: argInt, Int: i, F: float64(i)}
			return nil
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return err
		}
		*a = Arg{Kind: argFloat, F: f}
	}
	return nil
}

// Reference names one output of a node or an input.
type Reference struct {
	name string
	item int
}

// Reference is what the argument refers to.
func (a Arg) Reference() Reference { return Reference{a.S, max(a.Item, 0)} }

// number returns the argument as a scalar.
func (a Arg) number() (float64, bool) {
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
func (a Arg) ints() ([]int, bool) {
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

// Python returns the argument as a Python expression, references resolved by
// name.
func (a Arg) Python(ref func(Arg) (string, error)) (string, error) {
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
		if !Identifier(a.S) {
			return "", fmt.Errorf("%q is no name in torch", a.S)
		}
		return "torch." + a.S, nil
	case argDevice:
		return strconv.QuoteToASCII(a.S), nil
	}
	out := "["
	for i, v := range a.List {
		s, err := v.Python(ref)
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

// Identifier reports whether s is a plain ASCII name, as opposed to text that
// could smuggle code into a generated file.
func Identifier(s string) bool {
	for i, r := range s {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// Tree is what forward returns: containers with references as leaves.
type Tree struct {
	Value *Arg
	Tuple []Tree
	List  []Tree
	Dict  []treeItem
	Kind  string
}

type treeItem struct {
	Key  string
	Tree Tree
}

// UnmarshalJSON reads a container, or a leaf.
func (t *Tree) UnmarshalJSON(b []byte) error {
	var o map[string]json.RawMessage
	if err := json.Unmarshal(b, &o); err != nil {
		return err
	}
	for kind, raw := range o {
		t.Kind = kind
		switch kind {
		case "value":
			t.Value = new(Arg)
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
func (t Tree) leaves(f func(Arg) error) error {
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

// DecodeGraph reads a captured graph.
func DecodeGraph(b []byte) (*Graph, error) {
	g := new(Graph)
	if err := json.Unmarshal(b, g); err != nil {
		return nil, fmt.Errorf("captured graph: %w", err)
	}
	for _, n := range g.Nodes {
		if !Identifier(n.Name) {
			return nil, fmt.Errorf("captured graph: %q is no name", n.Name)
		}
	}
	var err error
	check := func(m TensorMeta) {
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
		check(i.TensorMeta)
	}
	for _, t := range slices.Concat(g.Parameters, g.Constants) {
		check(t.TensorMeta)
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
