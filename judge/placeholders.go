package judge

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/prompts"
)

// placeholders are the words in which a prompt asks for an answer. A weak model that
// is held to a form sends them back: they are no answer.
type placeholders struct {
	quoted map[string]bool // what the prompt has between quotation marks
	asked  string          // all words of the question
}

// leastEcho is how many words of the question in a row are an echo of it: fewer
// may be anybody's.
const leastEcho = 3

var quotations = regexp.MustCompile(`"([^"\n]*)"`)

// placeholdersOf reads them off the templates, so that a user's own count as well, in
// all words and in few.
func placeholdersOf(t *prompts.Templates, what prompts.JudgePrompt, v prompts.JudgeView) (placeholders, error) {
	p := placeholders{quoted: map[string]bool{}}
	for _, compact := range []bool{false, true} {
		system, user, err := t.Judge(what, prompts.JudgeView{Language: v.Language, GPU: v.GPU, Compact: compact})
		if err != nil {
			return placeholders{}, fmt.Errorf("make the prompt %s: %w", what, err)
		}
		p.asked += " " + inWords(user) + " "
		for _, q := range quotations.FindAllStringSubmatch(system+"\n"+user, -1) {
			p.quoted[inWords(q[1])] = true
		}
	}
	return p, nil
}

// nobodys are texts that stand for an answer in anybody's form.
var nobodys = []string{"todo", "tbd", "fixme", "xxx", "string", "text", "str", "value", "none", "null", "nil", "n a", "na", "unknown", "undefined", "placeholder", "example",
	"your answer", "your answer here", "your text", "your text here", "insert text here", "lorem ipsum"}

// of reports whether a text under a key says nothing of a candidate: it is the
// prompt's own, or blank in one of the usual ways.
func (p placeholders) of(key, text string) bool {
	said := inWords(text)
	if first, rest, _ := strings.Cut(said, " "); rest != "" && isKey(first) { // "fix: ..."
		said = rest
	}
	if said == "" || said == key || p.quoted[said] || slices.Contains(nobodys, said) || bracketed(strings.TrimSpace(text)) {
		return true
	}
	return key != "why" && strings.Count(said, " ")+1 >= leastEcho && strings.Contains(p.asked, " "+said+" ")
}

// isKey reports whether a word is a key of some form.
func isKey(word string) bool {
	for _, f := range forms {
		if slices.Contains(f.keys(), word) {
			return true
		}
	}
	return false
}

// bracketed reports whether one pair of brackets holds all of a text: "<why>", "[fix]",
// "{{.Plan}}".
func bracketed(text string) bool {
	for _, b := range []string{"<>", "[]", "{}"} {
		if inner, ok := strings.CutPrefix(text, b[:1]); ok && strings.HasSuffix(inner, b[1:]) && !strings.Contains(strings.TrimRight(inner, b[1:]), b[1:]) {
			return true
		}
	}
	return false
}

// inWords is a text's words in small letters, with a space between.
func inWords(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) }), " ")
}

// check returns what is wrong with a feedback whose parts are placeholders, in words
// that can be sent back.
func (p placeholders) check(f kernelwright.Feedback) error {
	parts := map[kernelwright.FeedbackKind][][2]string{
		kernelwright.Correction:   {{"issue", f.Issue}, {"why", f.Why}, {"fix", f.Fix}},
		kernelwright.Optimisation: {{"bottleneck", f.Bottleneck}, {"method", f.Method}, {"plan", f.Plan}},
		kernelwright.Stop:         {{"why", f.Why}},
	}
	for _, part := range parts[f.Kind] {
		if p.of(part[0], part[1]) {
			return fmt.Errorf("%q is %q, which says nothing of this candidate: say what you found", part[0], prompts.Line(part[1], 100))
		}
	}
	return nil
}
