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
	hasInclude  = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include\b`)
	hasImport   = regexp.MustCompile(`(?m)^(?:import|from)[ \t]+\w`)
	forGPUAlone = regexp.MustCompile(`__global__|<<<|\bcuda_runtime|\bcuda\.h\b|ATen/cuda|\.cuh\b`)
	binding     = regexp.MustCompile(`\bPYBIND11_MODULE\s*\(\s*\w+\s*,\s*(\w+)\s*\)`)
	forwardOf   = regexp.MustCompile(`(?s)\bclass\s+Model\b.*?\bdef\s+forward\s*\(([^)]*)\)`)
	givenByName = regexp.MustCompile(`(\w+)\s*(?::[^=,]+)?=\s*(\w+)`)
)

// isBare reports whether a text is C++ or CUDA rather than Python.
func isBare(text string) bool {
	return !definesNew.MatchString(text) && !hasImport.MatchString(text) && (hasInclude.MatchString(text) || forGPUAlone.MatchString(text))
}

// languageOf is what people call a bare source.
func languageOf(source string) string {
	if forGPUAlone.MatchString(source) {
		return "CUDA"
	}
	return "C++"
}

// bind returns a candidate in which the reference calls the function that a bare
// source binds, or why there is none.
func bind(reference, source string) (candidate, problem string) {
	bare := "it is bare " + languageOf(source) + ", and defines no class ModelNew: "
	function := bound(source)
	if function == "" {
		return "", bare + "it does not bind one function for Python"
	}
	parameter := givenFunction(reference)
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

// What the declaration of a bound function may be made of for the host's compiler.
const (
	tensor = `(?:torch|at)::Tensor`
	plain  = `(?:const\s+)?(?:` + tensor + `|std::vector<(?:` + tensor + `|int64_t)>|int64_t|int|float|double|bool)\s*&?\s*\w+(?:\s*=\s*[\w.:-]+)?`
)

var (
	definesBound = regexp.MustCompile(`(?m)^((?:` + tensor + `|std::vector<` + tensor + `>|void)\s+(\w+)\s*\(\s*(?:` + plain + `(?:\s*,\s*` + plain + `)*)?\s*\))\s*\{`)
	bindsPlainly = regexp.MustCompile(`\.\s*def\s*\(\s*"\w+"\s*,\s*&?(\w+)\s*[,)]`)
	anyDef       = regexp.MustCompile(`\.\s*def\w*\s*\(`)
	inNamespace  = regexp.MustCompile(`(?m)^\s*(?:inline\s+)?namespace\b`)
)

// apart takes the binding out of a source for nvcc and makes a source for the host's
// compiler of it: that reads PyTorch's headers in seconds, and nvcc in minutes. Where
// it cannot tell what is bound, all is left to nvcc.
func apart(source string) (cuda, cpp string) {
	at := binding.FindStringIndex(source)
	if at == nil || inNamespace.MatchString(source) {
		return source, ""
	}
	end := blockEnd(source, at[1])
	block := source[at[0]:end]
	bound := bindsPlainly.FindAllStringSubmatch(block, -1)
	if len(bound) != len(anyDef.FindAllString(block, -1)) {
		return source, ""
	}
	declared := map[string]string{}
	for _, m := range definesBound.FindAllStringSubmatch(source, -1) {
		declared[m[2]] = m[1] + ";\n"
	}
	declarations := ""
	for _, m := range bound {
		if declared[m[1]] == "" {
			return source, ""
		}
		declarations += declared[m[1]]
	}
	return source[:at[0]] + source[end:], "#include <torch/extension.h>\n\n" + declarations + "\n" + block + "\n"
}

// blockEnd returns where the block in braces ends that begins behind a place.
func blockEnd(source string, at int) int {
	depth := 0
	for i := at; i < len(source); i++ {
		switch source[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(source)
}

// bound returns the function that a source binds: the only one, or else that which
// is called forward; "" where there is none.
func bound(source string) string {
	m := binding.FindStringSubmatchIndex(source)
	if m == nil {
		return ""
	}
	defs := regexp.MustCompile(`\b` + regexp.QuoteMeta(source[m[2]:m[3]]) + `\s*\.\s*def\s*\(\s*"([A-Za-z_]\w*)"`)
	var names []string
	for _, found := range defs.FindAllStringSubmatch(source[m[1]:], -1) {
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

// givenFunction returns the parameter of a reference's forward that is a function
// of its file if nobody gives another one; "" where there is none.
func givenFunction(reference string) string {
	m := forwardOf.FindStringSubmatch(reference)
	if m == nil {
		return ""
	}
	for _, p := range givenByName.FindAllStringSubmatch(m[1], -1) {
		if regexp.MustCompile(`(?m)^def\s+` + regexp.QuoteMeta(p[2]) + `\b`).MatchString(reference) {
			return p[1]
		}
	}
	return ""
}
