package emit

import (
	"fmt"
	"strings"
	"testing"
)

// TestReadable: no tensor gets a name that something else has.
func TestReadable(t *testing.T) {
	var parameters []string
	for _, name := range []string{"x", "float", "a.b", "out0", "bits", "s_p_x", "a_b"} {
		parameters = append(parameters, fmt.Sprintf(`{"name":"p_%s","state":"%s","shape":[],"dtype":"float32"}`, name, name))
	}
	p := planOf(t, `{"inputs":[],"parameters":[`+strings.Join(parameters, ",")+`],"constants":[],"nodes":[],"outputs":{"tuple":[]}}`)
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

// TestNumbered: a value has one number in all its names, by its first, and no tensor's
// name changes.
func TestNumbered(t *testing.T) {
	got := numbered("f(v_x_13, s_p_a_7, part21) { a13 = exp_40; a13_1 = a13_2; bad13 = r13 + exp_40; i1 = out0; kernel0(float4); }")
	if want := "f(v_x_13, s_p_a_7, part21) { a1 = exp_2; a1_1 = a1_2; bad1 = r1 + exp_2; i1 = out0; kernel0(float4); }"; got != want {
		t.Errorf("got %s", got)
	}
}
