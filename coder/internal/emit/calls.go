package emit

import (
	"math"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// functions are those of <kw/math.h> beside the ones that every device has (kw::exp and
// its like): a kernel that calls them says what it computes, operator by operator.
var functions = strings.Fields("abs neg sqrt sin cos floor ceil trunc round exp2 log2 log10 " +
	"relu relu6 sigmoid silu gelu gelu_tanh softplus hardsigmoid hardswish mish")

// term is a formula of one operand: an operation of terms, a number, or the operand.
type term struct {
	op   string
	args []term
	num  float64
}

var operand = term{}

func number(c float64) term { return term{op: "number", num: c} }

func apply(op string, args ...term) term { return term{op: op, args: args} }

// composed are the functions that the plan has in several operations, each in the order
// in which <kw/math.h> has them: the same value to the last bit.
var composed = func() map[string]term {
	x, one, six := operand, number(1), number(6)
	decay := apply("add", one, apply("exp", apply("neg", x)))
	half := apply("mul", x, number(0.5))
	cube := apply("mul", apply("mul", x, x), x)
	inner := apply("mul", number(math.Sqrt2/math.Sqrt(math.Pi)), apply("add", x, apply("mul", number(0.044715), cube)))
	relu := apply("max", x, number(0))
	gate := apply("min", apply("max", apply("add", x, number(3)), number(0)), six)
	e := apply("exp", apply("min", x, number(30)))
	m := apply("mul", e, apply("add", e, number(2)))
	scaled := apply("mul", x, one)
	return map[string]term{
		"relu":        relu,
		"relu6":       apply("min", relu, six),
		"sigmoid":     apply("div", one, decay),
		"silu":        apply("div", x, decay),
		"gelu":        apply("mul", half, apply("add", one, apply("erf", apply("mul", x, number(math.Sqrt2/2))))),
		"gelu_tanh":   apply("mul", half, apply("add", one, apply("tanh", inner))),
		"hardsigmoid": apply("div", gate, six),
		"hardswish":   apply("div", apply("mul", x, gate), six),
		"mish":        apply("mul", x, apply("div", m, apply("add", m, number(2)))),
		"softplus": apply("where", apply("gt", scaled, number(20)), x,
			apply("div", apply("log1p", apply("exp", scaled)), one)),
	}
}()

// matches reports whether v is the formula t of *x, which it sets where it is nil. free
// says of a value that nothing but the formula needs it in a place of its own.
func (t term) matches(v *plan.Value, x **plan.Value, free func(*plan.Value) bool) bool {
	switch {
	case t.op == "":
		if *x == nil {
			*x = v
		}
		return *x == v
	case t.op == "number":
		return v.Kind == plan.Constant && float32(v.Const) == float32(t.num)
	case v.Kind != plan.Point || v.Op != t.op || len(v.Args) != len(t.args):
		return false
	}
	for i, a := range t.args {
		if !a.matches(v.Args[i], x, free) || a.op != "" && !free(v.Args[i]) {
			return false
		}
	}
	return true
}

// function returns the function of <kw/math.h> that a value is as a whole, and its operand;
// an empty name where it is none. What a schedule keeps between passes stays visible, and
// so does what a GPU computes: its divisions are chosen one by one.
func (b *body) function(v *plan.Value) (string, *plan.Value) {
	if b.special != nil || v.Kind != plan.Point || v.DType != plan.F32 {
		return "", nil
	}
	if len(v.Args) == 1 && slices.Contains(functions, v.Op) {
		return v.Op, v.Args[0]
	}
	free := func(w *plan.Value) bool { return !b.cached[w] && b.rowed[w] == "" }
	for name, t := range composed {
		if v.Op != t.op {
			continue
		}
		var x *plan.Value
		if t.matches(v, &x, free) && x.Kind != plan.Constant {
			return name, x
		}
	}
	return "", nil
}

// operands are the values that the expression of v names.
func (b *body) operands(v *plan.Value) []*plan.Value {
	if name, x := b.function(v); name != "" {
		return []*plan.Value{x}
	}
	return v.Args
}
