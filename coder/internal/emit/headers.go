package emit

import (
	"fmt"
	"strings"
)

// What kernels share lies in headers, which a candidate includes as <kw/NAME.h>:
// hwfeedback/harness/kwharness/build/include/kw.
var headers = []struct {
	name     string
	includes []string // that it includes by itself
	has      string   // what it declares in namespace kw, of what is called here
}{
	{"math", nil, "exp expm1 term log log1p tanh erf " + strings.Join(functions, " ")},
	{"pack", nil, "load store aligned stream prefetch"},
	{"parallel", nil, "parallel tiles each"},
	{"reduce", nil, "Sum Product Max Min MaxNum ArgMax ArgMin block_reduce column_reduce pairwise_sum most " +
		"sum mean prod max min maxnum argmax argmin"},
	{"softmax", []string{"reduce"}, "MaxSum"},
	{"welford", []string{"reduce"}, "Welford reciprocal"},
	{"scan", []string{"reduce"}, "block_scan scan_rows"},
	{"launch", nil, "devices begins follow there together"},
	{"team", nil, "meet fresh copy_ahead"},
}

// includes are the lines that include what a text calls.
func includes(text string) string {
	calls := map[string]bool{}
	for _, part := range strings.Split(text, "kw::")[1:] {
		end := strings.IndexAny(part, "<( ;[]")
		calls[part[:max(end, 0)]] = true
	}
	asked, given := map[string]bool{}, map[string]bool{}
	for _, h := range headers {
		for _, name := range strings.Fields(h.has) {
			if calls[name] {
				delete(calls, name)
				asked[h.name] = true
				for _, i := range h.includes {
					given[i] = true
				}
			}
		}
	}
	for name := range calls {
		panic("coder: no header has " + name)
	}
	var b strings.Builder
	for _, h := range headers {
		if asked[h.name] && !given[h.name] {
			fmt.Fprintf(&b, "#include <kw/%s.h>\n", h.name)
		}
	}
	if len(asked) == 0 {
		return "#include <kw/base.h>\n"
	}
	return b.String()
}
