package emit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/coder/internal/graphtest"
	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// chain is the graph of operators one after the other, on a matrix.
func chain(ops ...string) string {
	meta := `"shape":[8,64],"dtype":"float32","strides":[64,1]`
	from, nodes := "x", []string{}
	for i, op := range ops {
		name, kwargs, _ := strings.Cut(op, " ")
		to := fmt.Sprintf("n%d", i)
		nodes = append(nodes, fmt.Sprintf(`{"name":%q,"op":"aten.%s.default","args":[{"ref":%q}],"kwargs":{%s},"outputs":[{%s,"batch":true}],"many":false}`, to, name, from, kwargs, meta))
		from = to
	}
	return fmt.Sprintf(`{"v":1,"inputs":[{"name":"x","path":[0],%s}],"parameters":[],"constants":[],"nodes":[%s],"outputs":{"value":{"ref":%q}},"batch":{"size":8,"inputs":["x"]}}`, meta, strings.Join(nodes, ","), from)
}

// TestCalls: what the headers have is called by its name, operator by operator.
func TestCalls(t *testing.T) {
	for want, ops := range map[string][]string{
		"kw::relu(v_x[i0])":                    {"relu"},
		"kw::sigmoid(v_x[i0])":                 {"sigmoid"},
		"kw::silu(v_x[i0])":                    {"silu"},
		"kw::gelu(v_x[i0])":                    {"gelu"},
		"kw::gelu_tanh(v_x[i0])":               {`gelu "approximate":"tanh"`},
		"kw::hardsigmoid(v_x[i0])":             {"hardsigmoid"},
		"kw::hardswish(v_x[i0])":               {"hardswish"},
		"kw::relu6(v_x[i0])":                   {"relu6"},
		"kw::mish(v_x[i0])":                    {"mish"},
		"kw::softplus(v_x[i0])":                {"softplus"},
		"kw::abs(v_x[i0])":                     {"absolute"},
		"kw::sin(kw::neg(kw::round(v_x[i0])))": {"round", "negative", "sin"},
		"kw::sigmoid(kw::hardswish(kw::silu(kw::relu(kw::tanh(v_x[i0])))))": {"tanh", "relu", "silu", "hardswish", "sigmoid"},
	} {
		p := planOf(t, chain(ops...))
		holdsForms(t, emitCPP(p, plan.DefaultSchedule(p, graphtest.CPU)), []string{"out0[i0] = " + want, "#include <kw/math.h>\n"}, nil)
	}
}
