package teach

import (
	"strings"
	"testing"
)

const plain = `"A docstring."
import torch
import torch.nn as nn

from kernelwright import native

lib = native(language="cpp", source=r"""
#include <math.h>
#define WIDE 8
// a comment
static inline float twice(float value) { return 2.0f * value; }
extern "C" void chain(const float* x, float* out, long long n) {
    #pragma omp parallel for
    for (long long i = 0; i < n; ++i) {
        const float a = x[i], b = expf(a);
        out[i] = twice(a) > b ? a * b : WIDE;
    }
}
""")


class ModelNew(nn.Module):
    def __init__(self, size=3):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(size))

    def forward(self, x):
        y = torch.empty_like(x)
        lib.chain(x, y, x.numel())  # the work
        return y
`

// changed is the program with replacements: pairs of an old and a new text.
func changed(t *testing.T, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(plain, pairs[i]) {
			t.Fatalf("the program has no %q", pairs[i])
		}
	}
	return strings.NewReplacer(pairs...).Replace(plain)
}

// Texts that differ in names, white space and comments are one program; others are not.
func TestNormal(t *testing.T) {
	want := Normal(plain)
	for what, source := range map[string]string{
		"a docstring":           changed(t, `"A docstring."`+"\n", ""),
		"comments":              changed(t, "// a comment", "/* another\n one */", "  # the work", ""),
		"white space":           changed(t, "    for (long long i = 0; i < n; ++i) {", "for(long long i=0;i<n;++i){", "lib = native(language", "lib = native(\n    language"),
		"indents":               changed(t, "    def ", "  def ", "        ", "      "),
		"locals in C++":         changed(t, "const float* x, float* out, long long n", "const float* in, float* y, long long many", "i < n", "i < many", "x[i], b", "in[i], b", "out[i] =", "y[i] ="),
		"a name in two scopes":  changed(t, "float value) { return 2.0f * value; }", "float x) { return 2.0f * x; }"),
		"a function and macro":  changed(t, "twice", "doubled", "WIDE", "MANY"),
		"what Python calls":     changed(t, "void chain", "void relu", "lib.chain", "lib.relu"),
		"the library's name":    changed(t, "lib = ", "kernels = ", "lib.chain", "kernels.chain"),
		"locals in Python":      changed(t, "y = torch", "result = torch", "(x, y, x.numel())", "(x, result, x.numel())", "return y\n", "return result\n"),
		"a parameter in Python": changed(t, "forward(self, x)", "forward(self, given)", "empty_like(x)", "empty_like(given)", "chain(x, y, x.numel())", "chain(given, y, given.numel())"),
		"an attribute":          changed(t, "self.scale", "self.factor"),
		"a module's alias":      changed(t, "as nn", "as layers", "nn.Module", "layers.Module", "nn.Parameter", "layers.Parameter"),
	} {
		if got := Normal(source); got != want {
			t.Errorf("%s makes another program:\n%s\n%s", what, got, want)
		}
	}
	for what, source := range map[string]string{
		"a number":              changed(t, "WIDE 8", "WIDE 16"),
		"a literal":             changed(t, "2.0f", "2.5f"),
		"an operator":           changed(t, "a * b", "a + b"),
		"another function":      changed(t, "expf(a)", "logf(a)"),
		"another operator call": changed(t, "torch.empty_like", "torch.zeros_like"),
		"a pragma":              changed(t, "#pragma omp parallel for", "#pragma omp simd"),
		"a type":                changed(t, "const float a", "const double a"),
		"other operands":        changed(t, "twice(a) > b", "twice(b) > a"),
		"the order of names":    changed(t, "lib.chain(x, y,", "lib.chain(y, x,"),
		"an attribute's use":    changed(t, "return y\n", "return y * self.scale\n"),
		"a nested line":         changed(t, "        return y\n", "    return y\n"),
		"an argument's name":    changed(t, `language="cpp"`, `flags="cpp"`),
	} {
		if Normal(source) == want {
			t.Errorf("%s makes no other program", what)
		}
	}
}

// Whatever a policy writes has a Normal, and twice the same.
func FuzzNormal(f *testing.F) {
	for _, s := range []string{plain, "", "'", `"""`, "lib = native(source='''{;", "#", "x = {\n", "def", "\\", "native(\"{a;}\\n\")", "class : ; = (", "int f(", "{ ; } #define \xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		if a, b := Normal(source), Normal(source); a != b {
			t.Error("two readings differ")
		}
		if Normal("x = '''{;} "+source+"'''") == "" {
			t.Error("nothing is left")
		}
	})
}
