package audit

import (
	"regexp"
	"strings"
)

// cpp is a text of C++ or CUDA in two layers, each as long as the text itself, so
// that places in one are places in the other. Newlines stay in both.
type cpp struct {
	text string
	// code is without comments, directives, and what stands in literals. A string
	// that is a name keeps it.
	code string
	// directives is the lines of the preprocessor alone, without comments.
	directives string
}

// scan reads a text as C++'s first phases do: comments, literals (raw ones, too)
// and lines that a backslash continues. It takes every text: what is not closed
// ends with the text, or a plain literal with its line.
func scan(text string) cpp {
	s := scanner{text: text, code: blanks(text), directives: blanks(text), lineStart: true}
	for s.at < len(text) {
		s.step()
	}
	return cpp{text, string(s.code), string(s.directives)}
}

// blanks is a text of spaces with the lines of another one.
func blanks(text string) []byte {
	out := []byte(text)
	for i, c := range out {
		if c != '\n' {
			out[i] = ' '
		}
	}
	return out
}

type scanner struct {
	text             string
	at               int
	code, directives []byte
	directive        bool // it is within one
	lineStart        bool // nothing but space is before it in its line
}

var (
	rawString = regexp.MustCompile(`^(?:u8|[uUL])?R"([^()\\\s]{0,16})\(`)
	isName    = regexp.MustCompile(`^\w+$`)
)

func (s *scanner) step() {
	rest := s.text[s.at:]
	switch c := rest[0]; {
	case strings.HasPrefix(rest, "//"):
		s.at += lineEnd(rest)
	case strings.HasPrefix(rest, "/*"):
		s.at += behind(rest, 2, "*/")
	case c == '\n':
		s.directive, s.lineStart = false, true
		s.at++
	case c == '\\' && continued(rest) > 0:
		s.at += continued(rest)
	case c == '#' && s.lineStart:
		s.directive, s.lineStart = true, false
		s.keep(1)
	case c == ' ' || c == '\t' || c == '\r':
		s.at++
	case strings.IndexByte("RuUL", c) >= 0 && !s.inWord() && rawString.MatchString(rest):
		m := rawString.FindStringSubmatch(rest)
		s.lineStart = false
		s.at += behind(rest, len(m[0]), ")"+m[1]+`"`)
	case c == '"' || c == '\'' && !s.inNumber():
		s.lineStart = false
		s.literal(rest)
	default:
		n := 1
		for n < len(rest) && ofWord(c) && ofWord(rest[n]) {
			n++
		}
		s.lineStart = false
		s.keep(n)
	}
}

// keep takes what comes next over into its layer.
func (s *scanner) keep(n int) {
	layer := s.code
	if s.directive {
		layer = s.directives
	}
	copy(layer[s.at:s.at+n], s.text[s.at:])
	s.at += n
}

// literal takes a string or a character, its insides only where they are a name,
// or the name of a file that a directive includes.
func (s *scanner) literal(rest string) {
	quote, end := rest[0], 1
	for end < len(rest) && rest[end] != quote && rest[end] != '\n' {
		if rest[end] == '\\' && end+1 < len(rest) {
			end++
		}
		end++
	}
	end = min(end, len(rest))
	switch inside := rest[1:end]; {
	case end == len(rest) || rest[end] == '\n': // it is not closed
		s.at += end
	case s.directive || quote == '"' && isName.MatchString(inside):
		s.keep(end + 1)
	default:
		s.keep(1)
		s.at += end - 1
		s.keep(1)
	}
}

// inWord reports whether what was read last goes on.
func (s *scanner) inWord() bool { return s.at > 0 && ofWord(s.text[s.at-1]) }

func ofWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// inNumber tells the quotes in 1'000'000 from those of a character.
func (s *scanner) inNumber() bool {
	from := s.at
	for from > 0 && (ofWord(s.text[from-1]) || s.text[from-1] == '\'') {
		from--
	}
	return from < s.at && s.text[from] >= '0' && s.text[from] <= '9'
}

// lineEnd is how far it is to the end of a line, over those that go on.
func lineEnd(text string) int {
	for i := 0; i < len(text); i++ {
		switch n := continued(text[i:]); {
		case n > 0:
			i += n - 1
		case text[i] == '\n':
			return i
		}
	}
	return len(text)
}

// continued is how long the backslash is, with its newline, by which a line goes on; 0: none.
func continued(text string) int {
	switch {
	case strings.HasPrefix(text, "\\\n"):
		return 2
	case strings.HasPrefix(text, "\\\r\n"):
		return 3
	}
	return 0
}

// behind is the place behind what closes a text, or its end.
func behind(text string, from int, closing string) int {
	if i := strings.Index(text[from:], closing); i >= 0 {
		return from + i + len(closing)
	}
	return len(text)
}

// What a bound function may take and return where the host's compiler declares it
// without the source's own headers.
const (
	tensorType   = `(?:torch|at)::Tensor`
	numberType   = `(?:unsigned\s+)?(?:int64_t|int32_t|size_t|long\s+long|long|int|float|double|bool)`
	plainType    = `(?:` + tensorType + `|` + numberType + `|std::string|(?:torch|at|c10)::(?:IntArrayRef|ScalarType|Scalar))\b`
	compoundType = `(?:std::vector|(?:std|c10|torch|at)::optional|std::tuple|std::pair)\s*<\s*` + plainType + `(?:\s*,\s*` + plainType + `)*\s*>`
	declaredType = `(?:const\s+)?(?:` + plainType + `|` + compoundType + `)(?:\s+const\b)?\s*&?`
)

var (
	parameterOf = regexp.MustCompile(`^\s*(` + declaredType + `\s*\w*)\s*$`)
	returnOf    = regexp.MustCompile(`^\s*(` + declaredType + `|void)\s*$`)
	bindsOne    = regexp.MustCompile(`^\.\s*def\s*\(\s*"\w+"\s*,\s*&?\s*(\w+)\s*[,)]`)
	anyDef      = regexp.MustCompile(`\.\s*def\w*\s*\(`)
	anyWord     = regexp.MustCompile(`"\w*"|\b[A-Za-z_]\w*`)
	conditions  = regexp.MustCompile(`(?m)^\s*#\s*(if|endif)`)
)

// ofBinding are the words that a binding may have besides the functions' names:
// PyTorch's header knows them.
var ofBinding = wordSet("PYBIND11_MODULE TORCH_EXTENSION_NAME def doc py pybind11 arg none noconvert call_guard gil_scoped_release c10 std torch at nullopt true false nullptr")

func wordSet(words string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(words) {
		set[w] = true
	}
	return set
}

// apart takes the binding out of a source for nvcc and makes a source for the host's
// compiler of it: that reads PyTorch's headers in seconds, and nvcc in minutes. Where
// it cannot tell what is bound, all is left to nvcc.
func apart(source string) (cuda, host string) {
	s := scan(source)
	at := binding.FindStringSubmatchIndex(s.code)
	if at == nil || s.depth(at[0]) != 0 || s.conditional(at[0]) {
		return source, ""
	}
	end := closing(s.code, at[1])
	block := s.code[at[0]:end]
	allowed := wordSet(s.code[at[2]:at[3]])
	declarations := ""
	for _, def := range anyDef.FindAllStringIndex(block, -1) {
		m := bindsOne.FindStringSubmatch(block[def[0]:])
		if m == nil {
			return source, ""
		}
		if allowed[m[1]] {
			continue // it is bound by two names
		}
		declaration := s.declaration(m[1])
		if declaration == "" {
			return source, ""
		}
		declarations += declaration
		allowed[m[1]] = true
	}
	for _, word := range anyWord.FindAllString(block, -1) {
		if word[0] != '"' && !ofBinding[word] && !allowed[word] {
			return source, ""
		}
	}
	if declarations == "" || strings.TrimSpace(s.directives[at[0]:end]) != "" {
		return source, ""
	}
	return source[:at[0]] + source[end:], "#include <torch/extension.h>\n\n" + declarations + "\n" + source[at[0]:end] + "\n"
}

// depth is how many blocks are open at a place.
func (s cpp) depth(at int) int {
	return strings.Count(s.code[:at], "{") - strings.Count(s.code[:at], "}")
}

// conditional reports whether a place is between an #if and its #endif.
func (s cpp) conditional(at int) bool {
	open := 0
	for _, m := range conditions.FindAllStringSubmatch(s.directives[:at], -1) {
		if open--; m[1] == "if" {
			open += 2
		}
	}
	return open != 0
}

// declaration declares the function of a name as the source defines it, without
// default values, which a binding does not see; "" where it is another kind of
// function, or there are several.
func (s cpp) declaration(name string) string {
	found := ""
	for _, m := range regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`\s*\(`).FindAllStringIndex(s.code, -1) {
		if s.depth(m[0]) != 0 {
			continue // it is called there, or is a member
		}
		end := closing(s.code, m[1]-1)
		if !strings.HasPrefix(strings.TrimLeft(s.code[end:], " \t\r\n"), "{") {
			continue // it is declared there
		}
		from := strings.LastIndexAny(s.code[:m[0]], ";}") + 1
		result := returnOf.FindStringSubmatch(s.code[from:m[0]])
		parameters, ok := parametersOf(s.code[m[1] : end-1])
		if found != "" || result == nil || !ok || s.conditional(m[0]) {
			return ""
		}
		found = strings.Join(strings.Fields(result[1]), " ") + " " + name + "(" + strings.Join(parameters, ", ") + ");\n"
	}
	return found
}

// parametersOf reads what stands between a function's parentheses.
func parametersOf(text string) (parameters []string, ok bool) {
	if strings.TrimSpace(text) == "" {
		return nil, true
	}
	for _, one := range splitOutside(text) {
		one, _, _ = strings.Cut(one, "=")
		m := parameterOf.FindStringSubmatch(one)
		if m == nil {
			return nil, false
		}
		parameters = append(parameters, strings.Join(strings.Fields(m[1]), " "))
	}
	return parameters, true
}

// splitOutside splits at the commas that are in no brackets.
func splitOutside(text string) (parts []string) {
	depth, from := 0, 0
	for i := range len(text) {
		switch text[i] {
		case '(', '[', '{', '<':
			depth++
		case ')', ']', '}', '>':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, text[from:i])
				from = i + 1
			}
		}
	}
	return append(parts, text[from:])
}

// closing is the place behind the bracket that closes the first one which opens at
// a place or behind it, or the text's end.
func closing(code string, at int) int {
	depth := 0
	for i := at; i < len(code); i++ {
		switch code[i] {
		case '{', '(', '[':
			depth++
		case '}', ')', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(code)
}
