package audit

import (
	"regexp"
	"slices"

	"github.com/kernelwright/kernelwright/task"
)

// Some sets publish C++ or CUDA with a binding for PyTorch, and no ModelNew. It
// stands for a function, and a reference that calls the function that it is given
// (as those of the AI CUDA Engineer's archive do) makes a ModelNew of it.
var (
	hasInclude  = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]*[<"]`)
	hasImport   = regexp.MustCompile(`(?m)^(?:import|from)[ \t]+\w`)
	forGPUAlone = regexp.MustCompile(`__global__|<<<|\bcuda_runtime|\bcuda\.h\b|ATen/cuda|\.cuh\b`)
	binding     = regexp.MustCompile(`\bPYBIND11_MODULE\s*\(\s*\w+\s*,\s*(\w+)\s*\)`)
)

// isBare reports whether a text is C++ or CUDA rather than Python.
func isBare(text string) bool {
	if definesNew.MatchString(text) {
		return false
	}
	s := scan(text)
	return !hasImport.MatchString(s.code) && (hasInclude.MatchString(s.directives) || s.forGPU())
}

// forGPU reports whether it is CUDA.
func (s cpp) forGPU() bool {
	return forGPUAlone.MatchString(s.code) || forGPUAlone.MatchString(s.directives)
}

// languageOf is what people call a bare source.
func languageOf(source string) string {
	if scan(source).forGPU() {
		return "CUDA"
	}
	return "C++"
}

// bind returns a candidate in which the reference calls the function that a bare
// source binds, or why there is none. The parameter is the one that the reference's
// forward takes a function by; "": none.
func bind(reference, parameter, source string) (candidate, problem string) {
	bare := "it is bare " + languageOf(source) + ", and defines no class ModelNew: "
	function := bound(source)
	if function == "" {
		return "", bare + "it does not bind one function for Python"
	}
	if parameter == "" {
		return "", bare + "its reference does not call a function that it is given"
	}
	cpp, cuda := source, ""
	if languageOf(source) == "CUDA" {
		cuda, cpp = apart(source)
	}
	return reference + "\n\n" +
		"# What was published is a function, which stands in the place of the reference's own.\n" +
		"from torch.utils.cpp_extension import load_inline as _load_inline\n\n" +
		"_published = _load_inline(\n" +
		"    name=\"published\",\n" +
		"    cpp_sources=[" + literal(cpp) + "],\n" +
		"    cuda_sources=[" + literal(cuda) + "],\n" +
		"    extra_cflags=[\"-O3\"],\n" +
		"    extra_cuda_cflags=[\"-O3\"],\n" +
		"    no_implicit_headers=True,\n" +
		")\n\n\n" +
		"class ModelNew(Model):\n" +
		"    def forward(self, *args):\n" +
		"        return super().forward(*args, " + parameter + "=_published." + function + ")\n", ""
}

func literal(source string) string {
	if source == "" {
		return ""
	}
	return task.Literal(source)
}

// bound returns the function that a source binds: the only one, or else that which
// is called forward; "" where there is none.
func bound(source string) string {
	code := scan(source).code
	m := binding.FindStringSubmatchIndex(code)
	if m == nil {
		return ""
	}
	defs := regexp.MustCompile(`\b` + regexp.QuoteMeta(code[m[2]:m[3]]) + `\s*\.\s*def\s*\(\s*"([A-Za-z_]\w*)"`)
	var names []string
	for _, found := range defs.FindAllStringSubmatch(code[m[1]:closing(code, m[1])], -1) {
		names = append(names, found[1])
	}
	switch {
	case len(names) == 1:
		return names[0]
	case slices.Contains(names, "forward"):
		return "forward"
	}
	return ""
}
