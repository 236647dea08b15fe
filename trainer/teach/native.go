package teach

import (
	"regexp"
	"slices"
	"strings"
)

var (
	nativeToken    = regexp.MustCompile(`^(?:([\pL_][\pL\pN_]*)|(\d(?:[\w.']|[eEpP][-+])*|\.\d[\w.]*)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(::|->|<<<|>>>|[^\s\w]))`)
	nativeKeywords = strings.Fields(`alignas alignof asm auto bool break case catch char class const constexpr continue decltype default delete do double else enum explicit extern false float for friend goto if inline int long mutable namespace new noexcept nullptr operator private protected public register return short signed sizeof static static_assert struct switch template this throw true try typedef typename union unsigned using virtual void volatile while define include pragma if ifdef ifndef endif undef __restrict__ restrict __global__ __device__ __host__ __shared__ __forceinline__ __launch_bounds__ __attribute__ __align__ once`)
	// declaring are what stands before a name that is declared, beside names of types.
	declaring = strings.Fields(`auto bool char double float int long short signed unsigned void const constexpr __restrict__ restrict typename class struct enum namespace using size_t define`)
	// saying are words before which stands no type.
	saying = strings.Fields(`return case goto else new delete throw sizeof typedef if while do include pragma operator`)
)

// nativeTokens reads C++ or CUDA, without comments. A directive is closed by a line end
// of its own.
func nativeTokens(source string) (tokens []string) {
	directive := false
	for i := 0; i < len(source); {
		rest := source[i:]
		switch {
		case strings.HasPrefix(rest, "\\\n"):
			i += 2
		case rest[0] == '\n':
			if directive {
				tokens = append(tokens, "\n")
			}
			directive = false
			i++
		case rest[0] == ' ' || rest[0] == '\t' || rest[0] == '\r' || rest[0] == '\f':
			i++
		case strings.HasPrefix(rest, "//"):
			if end := strings.IndexByte(rest, '\n'); end >= 0 {
				i += end
			} else {
				i = len(source)
			}
		case strings.HasPrefix(rest, "/*"):
			if end := strings.Index(rest[2:], "*/"); end >= 0 {
				i += end + 4
			} else {
				i = len(source)
			}
		default:
			t := nativeToken.FindString(rest)
			if t == "" {
				t = rest[:1]
			}
			directive = directive || t == "#"
			tokens = append(tokens, t)
			i += len(t)
		}
	}
	return tokens
}

// native writes C++ or CUDA: names of the file are numbered in it, others in the
// function or the class that defines them.
func (n *normal) native(source string) {
	tokens := nativeTokens(source)
	file := names{prefix: "n", of: map[string]string{}}
	parts := nativeParts(tokens)
	locals := make([]names, len(parts))
	for i, part := range parts {
		locals[i] = names{prefix: "v", of: map[string]string{}}
		depth, angles, template := 0, 0, part[0] == "template"
		for k, t := range part {
			switch {
			case t == "{" || t == "(":
				depth++
			case t == "}" || t == ")":
				depth--
			case template && t == "<":
				angles++
			case template && t == ">":
				angles--
				template = angles > 0
			case !declared(part, k):
			case depth == 0 && angles == 0:
				file.bind(t)
			default:
				locals[i].bind(t)
			}
		}
	}
	n.out = append(n.out, "native", "{")
	for i, part := range parts {
		for _, t := range part {
			n.out = append(n.out, locals[i].numberOr(t, file))
		}
	}
	n.out = append(n.out, "}")
	for name, number := range file.of {
		n.exported[name] = number
	}
}

// nativeParts are a file's declarations and directives, each by itself. What a linkage
// or a namespace holds is the file's own.
func nativeParts(tokens []string) (parts [][]string) {
	var part []string
	depth, open := 0, 0
	for i, t := range tokens {
		part = append(part, t)
		switch {
		case part[0] == "#":
			if t != "\n" && i+1 < len(tokens) {
				continue
			}
		case t == "{" && depth == 0 && (part[0] == "namespace" || part[0] == "extern" && len(part) == 3):
			open++
		case t == "{" || t == "(":
			depth++
			continue
		case t == ")":
			depth--
			continue
		case t == "}" && depth == 0 && open > 0:
			open--
		case t == "}":
			if depth--; depth > 0 || i+1 < len(tokens) && (tokens[i+1] == ";" || tokens[i+1] == ",") {
				continue
			}
		case t != ";" || depth > 0:
			continue
		}
		parts = append(parts, part)
		part = nil
	}
	if len(part) > 0 {
		parts = append(parts, part)
	}
	return parts
}

var isName = regexp.MustCompile(`^[\pL_]`)

// declared reports whether a token is a name where it is declared: after a type, and
// before what may follow a name that is new.
func declared(part []string, at int) bool {
	t := part[at]
	if at == 0 || !isName.MatchString(t) || slices.Contains(nativeKeywords, t) {
		return false
	}
	before, after := part[at-1], ""
	if at+1 < len(part) {
		after = part[at+1]
	}
	if before == "define" || slices.Contains([]string{"struct", "class", "namespace", "using"}, before) {
		return true
	}
	if !slices.Contains([]string{"=", ";", ",", ")", "(", "[", "{", ":", ">", ""}, after) {
		return false
	}
	k := at - 1
	for k > 0 && (part[k] == "*" || part[k] == "&") {
		k--
	}
	typed := func(t string) bool {
		return slices.Contains(declaring, t) || isName.MatchString(t) && !slices.Contains(saying, t) && !slices.Contains(nativeKeywords, t)
	}
	switch {
	case k < at-1: // a pointer: else it is a product
		return slices.Contains(declaring, part[k]) || part[k] == ">" || k > 0 && slices.Contains(declaring, part[k-1])
	case before == ",": // of a list of declarations
		return listed(part, at)
	case before == ">":
		return after != ")" && after != "," || closesTemplate(part, at-1)
	}
	return typed(before)
}

// listed reports whether a name after a comma stands in a statement that declares: one
// that begins with a type, outside of parentheses.
func listed(part []string, at int) bool {
	depth := 0
	for k := at - 1; k >= 0; k-- {
		switch part[k] {
		case ")", "]", "}":
			depth++
		case "(", "[":
			if depth--; depth < 0 {
				return false
			}
		case ";", "{":
			if depth <= 0 {
				return k+1 < at && slices.Contains(declaring, part[k+1])
			}
			depth--
		}
	}
	return slices.Contains(declaring, part[0])
}

// closesTemplate reports whether a ">" ends a list of types.
func closesTemplate(part []string, at int) bool {
	for k := at - 1; k >= 0; k-- {
		switch part[k] {
		case "<":
			return true
		case ";", "{", "}", "(", ")", "&", "=":
			return false
		}
	}
	return false
}
