package emit

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright/coder/internal/plan"
)

// label names a value in generated code by what it is: the function or operator, or the
// tensor that it is read from, and its number.
func (b *body) label(v *plan.Value) string {
	name, _ := b.function(v)
	switch {
	case name != "":
	case v.Kind == plan.Load && v.Buf != nil:
		name = plainName(v.Buf.Name)
	case v.Kind == plan.Position:
		name = "index"
	case v.Kind == plan.Access:
		name = v.Args[0].Op
	default:
		name = v.Op
	}
	if !plan.Identifier(name) || strings.HasPrefix(name, "kernel") {
		name = "t"
	}
	return fmt.Sprintf("%s_%d", name, v.ID)
}

// numberedName is a local that is called by what it is and its value's number: a label, or
// what belongs to a reduction, of which several may be side by side (a13, a13_1). What a
// GPU's kernels leave for each other (part13) is not: Python knows it, too.
var numberedName = regexp.MustCompile(`^(?:(acc|ahead|apart|at|before|bad|carry|column|f|flags|from|held|inside|kept|low|parts|place|places|` +
	`scratch|span|sum|to|top|[apqrsvwx])(\d+)((?:_\d+)?)|([A-Za-z]\w*_)(\d+))$`)

// numbered gives the values of a candidate numbers in the order in which they come: 1, 2,
// 3, each in all its names.
func numbered(kernels string) string {
	numbers := map[string]string{}
	return eachName(kernels, func(name string) string {
		m := numberedName.FindStringSubmatch(name)
		if m == nil || strings.HasPrefix(name, "v_") || strings.HasPrefix(name, "s_") { // tensors
			return name
		}
		id := m[2] + m[5]
		if numbers[id] == "" {
			numbers[id] = strconv.Itoa(len(numbers) + 1)
		}
		return m[1] + m[4] + numbers[id] + m[3]
	})
}

// plainName is a buffer's name without what tells it from all others.
func plainName(name string) string {
	for _, prefix := range []string{"v_", "s_p_", "s_b_", "s_c_", "s_"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && plan.Identifier(rest) {
			return rest
		}
	}
	return name
}

var (
	literals = regexp.MustCompile(`"(?:\\.|[^"\\\n])*"`)
	// What neither language lets a variable be called, or a reader would take for something else.
	keywords = strings.Fields(`False None True and as asm assert async auto await bool break case catch char class const
		constexpr continue def default del delete do double elif else enum except explicit export extern
		false finally float for friend from global goto half if import in inline int is lambda list long mutable
		namespace new nonlocal not nullptr operator or pass private protected public raise register return
		self short signed sizeof static std struct switch template this throw true try typedef typeid typename
		union unsigned using virtual void volatile wchar_t while with xor yield dict float2 float4 int4 len
		main print range str super tuple type torch nn F kw lib native threadIdx blockIdx blockDim gridDim`)
)

// readable calls the tensors of a candidate what the reference calls them, where
// nothing else in its text is called so: inputs by forward's arguments, weights
// by their names in the state_dict, results of PyTorch's operators by these.
func readable(p *plan.Plan, kernels, class string) (string, string) {
	taken := map[string]bool{}
	for _, word := range keywords {
		taken[word] = true
	}
	eachName(kernels, func(name string) string {
		taken[name] = true
		return name
	})
	eachName(literals.ReplaceAllString(class, `""`), func(name string) string {
		taken[name] = true
		return name
	})
	names := map[string]string{}
	wanted := wantedNames(p)
	for _, old := range slices.Sorted(maps.Keys(wanted)) {
		if strings.Contains(class, `"`+old+`"`) { // a part of a state_dict is called so, too
			continue
		}
		for _, name := range []string{wanted[old], wanted[old] + "_in"} {
			if plan.Identifier(name) && !taken[name] {
				names[old], taken[name] = name, true
				break
			}
		}
	}
	renamed := func(text string) string {
		return eachName(text, func(old string) string {
			if name := names[old]; name != "" {
				return name
			}
			return old
		})
	}
	return renamed(kernels), renamed(class)
}

// eachName returns a text with what f gives for each name in it. Regular expressions
// take ten times as long.
func eachName(text string, f func(name string) string) string {
	letter := func(c byte) bool { return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
	var b strings.Builder
	b.Grow(len(text))
	for i := 0; i < len(text); {
		end := i + 1
		if !letter(text[i]) {
			b.WriteByte(text[i])
		} else {
			for end < len(text) && (letter(text[end]) || '0' <= text[end] && text[end] <= '9') {
				end++
			}
			b.WriteString(f(text[i:end]))
		}
		i = end
	}
	return b.String()
}

// wantedNames returns what each tensor's name in generated code should be.
func wantedNames(p *plan.Plan) map[string]string {
	wanted := map[string]string{}
	for _, in := range p.Graph.Inputs {
		wanted["v_"+in.Name] = in.Name
	}
	for _, t := range p.Graph.Parameters {
		wanted["s_"+t.Name] = strings.ReplaceAll(t.State, ".", "_")
	}
	for _, t := range p.Graph.Constants {
		wanted["s_"+t.Name] = plainName("s_" + t.Name)
	}
	for _, s := range p.Steps {
		if s.Kernel == nil {
			for _, v := range s.Call.Vars {
				wanted[v] = plainName(v) + "_out"
			}
		}
	}
	return wanted
}
