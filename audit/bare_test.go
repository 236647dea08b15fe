package audit

import (
	"strings"
	"testing"
)

func TestBareSources(t *testing.T) {
	for text, want := range map[string]bool{
		bareCUDA: true, "#include <x.h>\nint f();": true, "__global__ void f() {}": true,
		"/*\nfrom https://example.org\nimport this into a project\n*/\n#include <x.h>\n": true,
		aCandidate: false, "import torch\nSOURCE = \"\"\"\n#include <x.h>\n\"\"\"\n": false, "this is prose": false, "": false,
		"# include what is needed\nx = 1\n": false, "\"\"\"Don't use this\"\"\"\nimport torch\ns = '#include <x.h> __global__'\n": false,
	} {
		if got := isBare(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	for text, want := range map[string]string{
		"__global__ void f() {}": "CUDA", "#include \"a.cuh\"\n": "CUDA", "f<<<1, 1>>>();": "CUDA",
		"// no __global__ here\nint f() { return 1 << 2; }": "C++", "const char* s = \"<<<\";": "C++",
	} {
		if got := languageOf(text); got != want {
			t.Errorf("%q: %s", text, got)
		}
	}
}

func TestBind(t *testing.T) {
	text, problem := bind(functional, "fn", bareCUDA)
	if problem != "" || !strings.HasPrefix(text, functional) || !strings.Contains(text, "    cuda_sources=[r\"\"\""+strings.Split(bareCUDA, "PYBIND11")[0]) ||
		!strings.Contains(text, "cpp_sources=[r\"\"\"#include <torch/extension.h>\n\ntorch::Tensor forward(torch::Tensor x);\n\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {") ||
		!strings.HasSuffix(text, "return super().forward(*args, fn=_published.forward)\n") {
		t.Errorf("%s\n%s", problem, text)
	}
	cpp := strings.Replace(bareCUDA, "__global__ ", "", 1)
	if text, problem = bind(functional, "fn", cpp); problem != "" || !strings.Contains(text, "cpp_sources=[r\"\"\""+cpp) || !strings.Contains(text, "cuda_sources=[],") {
		t.Errorf("%s\n%s", problem, text)
	}
	several := func(names ...string) string {
		body := ""
		for _, n := range names {
			body += "  mod . def( \"" + n + "\", &f);\n"
		}
		return "__global__ void f();\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, mod) {\n" + body + "}\n"
	}
	const bare = "it is bare CUDA, and defines no class ModelNew: "
	for name, c := range map[string]struct{ parameter, source, problem string }{
		"one function of any name":     {"fn", several("softmax"), ""},
		"several, one called forward":  {"fn", several("a", "forward"), ""},
		"several":                      {"fn", several("a", "b"), bare + "it does not bind one function for Python"},
		"none":                         {"fn", "__global__ void f();", bare + "it does not bind one function for Python"},
		"one in a comment":             {"fn", "__global__ void f();\n// PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def(\"forward\", &f); }\n", bare + "it does not bind one function for Python"},
		"one, and another in comments": {"fn", several("a") + "// mod.def(\"b\", &f);\n/* mod.def(\"c\", &f); */", ""},
		"a brace in a docstring":       {"fn", "__global__ void f();\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n  m.doc() = \"a } and a {\";\n  m.def(\"a\", &f, \"}\");\n}\nvoid g(M m) { m.def(\"b\", 1); }\n", ""},
		"a reference of another form":  {"", bareCUDA, bare + "its reference does not call a function that it is given"},
		"a name that is no identifier": {"fn", several("a-b"), bare + "it does not bind one function for Python"},
	} {
		if _, problem := bind(functional, c.parameter, c.source); problem != c.problem {
			t.Errorf("%s: %q", name, problem)
		}
	}
}

// A binding that is plain is compiled by the host's compiler, any other one by nvcc.
func TestApart(t *testing.T) {
	const module = "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n  m.def(\"forward\", &run);\n}\n"
	const kernel = "__global__ void k() {}\n\n"
	for name, c := range map[string]struct{ body, declared string }{
		"default values": {
			"torch::Tensor run(torch::Tensor x, const at::Tensor& w,\n    int64_t n = 3, float eps = 1e-5) {\n  return x;\n}\n",
			"torch::Tensor run(torch::Tensor x, const at::Tensor& w, int64_t n, float eps);\n",
		},
		"default values with brackets and names": {
			"torch::Tensor run(torch::Tensor x, std::vector<int64_t> d = {1, 2}, float eps = std::pow(2.0f, -(EPS)), int b = BLOCK) {\n  return x;\n}\n",
			"torch::Tensor run(torch::Tensor x, std::vector<int64_t> d, float eps, int b);\n",
		},
		"comments among the parameters": {
			"torch::Tensor run(\n    torch::Tensor x,  // the input, (n, m)\n    /* weights, or {} */ c10::optional<torch::Tensor> w\n) // done\n{\n  return x; // }\n}\n",
			"torch::Tensor run(torch::Tensor x, c10::optional<torch::Tensor> w);\n",
		},
		"lists": {"std::vector<at::Tensor> run(std::vector<int64_t> sizes) { return {}; }\n", "std::vector<at::Tensor> run(std::vector<int64_t> sizes);\n"},
		"strings and characters with braces": {
			"const char* a = \"}} // no comment\"; const char b = '}', c = '\\''; const int d = 1'000'000;\nconst char* e = R\"x({{{ \")\" )x\";\ntorch::Tensor run(torch::Tensor x) { TORCH_CHECK(x.dim() == 2, \"not {2}\"); return x; }\n",
			"torch::Tensor run(torch::Tensor x);\n",
		},
		"macros": {
			"#define CHECK(x) { TORCH_CHECK(x.is_cuda()) \\\n  TORCH_CHECK(x.is_contiguous())\n#define RUN torch::Tensor run(int x) {\ntorch::Tensor run(torch::Tensor x) { CHECK(x) } return x; }\n",
			"", // what the macros make of it, nobody here knows
		},
		"balanced macros": {
			"#define CHECK(x) \\\n  do { TORCH_CHECK(x.is_cuda()) } while (0)\ntorch::Tensor run(torch::Tensor x) { CHECK(x); return x; }\n",
			"torch::Tensor run(torch::Tensor x);\n",
		},
		"an alias of a namespace":     {"namespace py = pybind11;\nusing namespace at;\ntorch::Tensor run(torch::Tensor x) { return x; }\n", "torch::Tensor run(torch::Tensor x);\n"},
		"a declaration before":        {"torch::Tensor run(torch::Tensor x, int n = 1);\ntorch::Tensor other(torch::Tensor x) { return run(x); }\ntorch::Tensor run(torch::Tensor x, int n) { return x; }\n", "torch::Tensor run(torch::Tensor x, int n);\n"},
		"a type of its own":           {"struct S {};\ntorch::Tensor run(S s) { return {}; }\n", ""},
		"a name for a type":           {"using torch::Tensor;\nTensor run(Tensor x) { return x; }\n", ""},
		"a type with a known one's":   {"using floaty = float;\nvoid run(floaty) {}\n", ""},
		"a namespace":                 {"namespace a {\ntorch::Tensor run(torch::Tensor x) { return x; }\n}\nusing a::run;\n", ""},
		"a template":                  {"template <class T>\nT run(T x) { return x; }\n", ""},
		"a template of a known type":  {"template <int N>\ntorch::Tensor run(torch::Tensor x) { return x; }\n", ""},
		"for its file alone":          {"static torch::Tensor run(torch::Tensor x) { return x; }\n", ""},
		"several":                     {"torch::Tensor run(torch::Tensor x) { return x; }\ntorch::Tensor run(torch::Tensor x, int n) { return x; }\n", ""},
		"one or the other":            {"#ifdef FAST\ntorch::Tensor run(torch::Tensor x) { return x; }\n#endif\n", ""},
		"in a comment alone":          {"/* torch::Tensor run(torch::Tensor x) { return x; } */\n", ""},
		"a comment that does not end": {"torch::Tensor run(torch::Tensor x) { return x; }\n", "torch::Tensor run(torch::Tensor x);\n"},
	} {
		source, after := "#include <torch/extension.h>\n"+kernel+c.body+module, ""
		if strings.Contains(name, "does not end") {
			after = "/* and so on"
			source += after
		}
		cuda, cpp := apart(source)
		switch {
		case c.declared == "" && (cuda != source || cpp != ""):
			t.Errorf("%s: %s", name, cpp)
		case c.declared != "" && (cuda != "#include <torch/extension.h>\n"+kernel+c.body+"\n"+after || cpp != "#include <torch/extension.h>\n\n"+c.declared+"\n"+strings.TrimSuffix(module, "\n")+"\n"):
			t.Errorf("%s\n%s\n%s", name, cuda, cpp)
		}
	}
	const run = kernel + "torch::Tensor run(torch::Tensor x, float eps = 1) { return x; }\n"
	for body, whole := range map[string]bool{
		"m.def(\"forward\", &run, \"what it is: } {\", py::arg(\"x\"), py::arg(\"eps\") = 1e-5f); // }\n": false,
		"m.doc() = \"two names\";\n  m.def(\"forward\", &run);\n  m.def(\"run\", run);\n":                 false,
		"m.def(\"forward\", [](torch::Tensor x) { return x; });\n":                                        true,
		"m.def(\"forward\", &run, py::arg(\"x\"), py::arg(\"eps\") = EPS);\n":                             true,
		"#ifdef A\n  m.def(\"forward\", &run);\n#else\n  m.def(\"forward\", &run, \"b\");\n#endif\n":      true,
		"m.def(\"forward\", static_cast<torch::Tensor (*)(torch::Tensor, float)>(&run));\n":               true,
		"py::class_<S>(m, \"S\").def(py::init<>());\n  m.def(\"forward\", &run);\n":                       true,
		"": true,
	} {
		source := run + "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n  " + body + "}\n"
		cuda, cpp := apart(source)
		if whole && (cuda != source || cpp != "") || !whole && (cuda != run+"\n" || !strings.HasSuffix(cpp, body+"}\n")) {
			t.Errorf("%s\n%s\n%s", body, cuda, cpp)
		}
	}
}

// Whatever a source has, its layers keep its places, and nothing of it is lost.
func FuzzApart(f *testing.F) {
	f.Add(bareCUDA)
	f.Add("#define A \\\n  '\"' // \\\n b\nR\"(\" /* )\" 1'0 'x' \"\\\"\"")
	f.Add("PYBIND11_MODULE(a, m) { m.def(\"f\", &f); } PYBIND11_MODULE(")
	f.Fuzz(func(t *testing.T, source string) {
		s := scan(source)
		if len(s.code) != len(source) || len(s.directives) != len(source) {
			t.Fatalf("%d and %d of %d", len(s.code), len(s.directives), len(source))
		}
		for i := range len(source) {
			for _, c := range []byte{s.code[i], s.directives[i]} {
				if c != ' ' && c != source[i] {
					t.Fatalf("at %d of %q: %q, %q", i, source, s.code, s.directives)
				}
			}
		}
		if cuda, host := apart(source); host == "" && cuda != source || len(cuda) > len(source) {
			t.Fatalf("%q: %q, %q", source, cuda, host)
		}
		_, _, _ = isBare(source), languageOf(source), bound(source)
	})
}
