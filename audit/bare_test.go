package audit

import (
	"strings"
	"testing"
)

func TestBareSources(t *testing.T) {
	for text, want := range map[string]bool{
		bareCUDA: true, "#include <x.h>\nint f();": true, "__global__ void f() {}": true,
		aCandidate: false, "import torch\nSOURCE = \"\"\"\n#include <x.h>\n\"\"\"\n": false, "this is prose": false, "": false,
	} {
		if got := isBare(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestBind(t *testing.T) {
	text, problem := bind(functional, bareCUDA)
	if problem != "" || !strings.HasPrefix(text, functional) || !strings.Contains(text, "    cuda_sources=[r\"\"\""+strings.Split(bareCUDA, "PYBIND11")[0]) ||
		!strings.Contains(text, "cpp_sources=[r\"\"\"#include <torch/extension.h>\n\ntorch::Tensor forward(torch::Tensor x);\n\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {") ||
		!strings.HasSuffix(text, "return super().forward(*args, fn=_published.forward)\n") {
		t.Errorf("%s\n%s", problem, text)
	}
	cpp := strings.Replace(bareCUDA, "__global__ ", "", 1)
	if text, problem = bind(functional, cpp); problem != "" || !strings.Contains(text, "cpp_sources=[r\"\"\""+cpp) || !strings.Contains(text, "cuda_sources=[],") {
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
	for name, c := range map[string]struct{ reference, source, problem string }{
		"one function of any name":     {functional, several("softmax"), ""},
		"several, one called forward":  {functional, several("a", "forward"), ""},
		"several":                      {functional, several("a", "b"), bare + "it does not bind one function for Python"},
		"none":                         {functional, "__global__ void f();", bare + "it does not bind one function for Python"},
		"a reference of another form":  {aReference, bareCUDA, bare + "its reference does not call a function that it is given"},
		"a default that is none":       {strings.Replace(functional, "fn=module_fn", "eps=tiny", 1), bareCUDA, bare + "its reference does not call a function that it is given"},
		"a function with a type":       {strings.Replace(functional, "fn=module_fn", "fn: Callable = module_fn, eps=1", 1), bareCUDA, ""},
		"a function of no Model":       {strings.Replace(functional, "class Model(", "class Other(", 1), bareCUDA, bare + "its reference does not call a function that it is given"},
		"a name that is no identifier": {functional, several("a-b"), bare + "it does not bind one function for Python"},
	} {
		if _, problem := bind(c.reference, c.source); problem != c.problem {
			t.Errorf("%s: %q", name, problem)
		}
	}
}

// A binding that is plain is compiled by the host's compiler, any other one by nvcc.
func TestApart(t *testing.T) {
	const module = "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n  m.def(\"forward\", &run);\n}\n"
	const kernel = "__global__ void k() {}\n\n"
	for body, declared := range map[string]string{
		"torch::Tensor run(torch::Tensor x, const at::Tensor& w,\n    int64_t n = 3, float eps = 1e-5) {\n  return x;\n}\n": "torch::Tensor run(torch::Tensor x, const at::Tensor& w,\n    int64_t n = 3, float eps = 1e-5);\n",
		"std::vector<at::Tensor> run(std::vector<int64_t> sizes) { return {}; }\n":                                          "std::vector<at::Tensor> run(std::vector<int64_t> sizes);\n",
		"struct S {};\ntorch::Tensor run(S s) { return {}; }\n":                                                             "",
		"namespace a {\ntorch::Tensor run(torch::Tensor x) { return x; }\n}\nusing a::run;\n":                               "",
		"template <class T>\nT run(T x) { return x; }\n":                                                                    "",
	} {
		source := "#include <torch/extension.h>\n" + kernel + body + module
		cuda, cpp := apart(source)
		switch {
		case declared == "" && (cuda != source || cpp != ""):
			t.Errorf("%s: %s", body, cpp)
		case declared != "" && (strings.Contains(cuda, "PYBIND11") || !strings.Contains(cuda, body) || cpp != "#include <torch/extension.h>\n\n"+declared+"\n"+strings.TrimSuffix(module, "\n")+"\n"):
			t.Errorf("%s\n%s\n%s", body, cuda, cpp)
		}
	}
	lambda := kernel + "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {\n  m.def(\"forward\", [](torch::Tensor x) { return x; });\n}\n"
	if cuda, cpp := apart(lambda); cuda != lambda || cpp != "" {
		t.Errorf("%s\n%s", cuda, cpp)
	}
}
