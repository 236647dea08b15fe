package coder

import (
	"context"
	"regexp"
	"strings"
	"testing"
)

// TestNames: inputs and weights are called what the reference calls them, values
// by their operators, and who reads the code meets no number alone.
func TestNames(t *testing.T) {
	nameless := regexp.MustCompile(`\b(?:[tp]\d+|[vs]_\w+)\b`)
	for fixture, want := range map[string][]string{
		"softmax":   {"def forward(self, inputs_0)", "const float exp_6 = kw::exp(inputs_0[129 * i0 + i1] - maxnum_1);"},
		"conv_pool": {"def forward(self, x_in)", "layer_weight = self._modules[\"layer\"]", "conv2d_out = F.conv2d(x_in, layer_weight, layer_bias)"},
	} {
		got, err := Builtin{}.Propose(context.Background(), input(committed(t)[fixture]))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(got.Source, w) {
				t.Errorf("%s: no %s in\n%s", fixture, w, got.Source)
			}
		}
		if found := nameless.FindAllString(got.Source, -1); len(found) > 0 {
			t.Errorf("%s: it calls something %v", fixture, found)
		}
	}
}

// TestReadable: no tensor gets a name that something else has.
func TestReadable(t *testing.T) {
	tensor := func(name string) graphTensor { return graphTensor{Name: "p_" + name, State: name} }
	p := &plan{lowering: &lowering{g: &graph{Parameters: []graphTensor{tensor("x"), tensor("float"), tensor("a.b"), tensor("out0"), tensor("bits"), tensor("s_p_x"), tensor("a_b")}}}}
	kernels := "static inline int bits(float x) { return __builtin_bit_cast(int, x); }\nf(s_p_x + s_p_float, s_p_a.b, out0, s_p_out0, s_p_bits, s_p_s_p_x);"
	class := `self.register("out0", "s_p_x"); f"x is {s_p_float}"; lib.f(s_p_x)`
	kernels, class = readable(p, kernels, class)
	for _, want := range []string{"bits(float x)", "s_p_x + float_in", "out0, out0_in, bits_in"} {
		if !strings.Contains(kernels, want) {
			t.Errorf("no %s in %s", want, kernels)
		}
	}
	if want := `self.register("out0", "s_p_x"); f"x is {float_in}"; lib.f(s_p_x)`; class != want {
		t.Errorf("got %s", class)
	}
}
