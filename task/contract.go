package task

import (
	"fmt"
	"regexp"
	"strings"
)

// ReadReference is Read of a file that is to be a task. A text in which a name occurs
// nowhere that a task defines is refused at once: no Python is needed to see that.
func ReadReference(path string) (File, error) {
	f, err := Read(path)
	if err != nil {
		return f, err
	}
	return f, CheckReference(f.Source)
}

// parts are the names that a task defines, and how a sentence says each.
var parts = []struct{ name, said string }{
	{"Model", "Model"}, {"get_inputs", "get_inputs()"}, {"get_init_inputs", "get_init_inputs()"},
}

// defined finds by which other ways a module may come by a name.
var defined = regexp.MustCompile(`\bimport\s*\(?\s*\*|\b(?:exec|globals|locals|vars|setattr)\b|__dict__`)

// CheckReference returns an *kernelwright.InvalidTaskError where a text cannot define all
// parts of a task. That they are named does not make it one: Python says that.
func CheckReference(source string) error {
	if defined.MatchString(source) {
		return nil
	}
	var missing []string
	for _, p := range parts {
		if !regexp.MustCompile(`\b` + p.name + `\b`).MatchString(source) {
			missing = append(missing, "no "+p.said)
		}
	}
	switch n := len(missing); n {
	case 0:
		return nil
	case 1:
		return invalid("the file defines "+missing[0], references)
	default:
		said := fmt.Sprintf("the file defines %s and %s", strings.Join(missing[:n-1], ", "), missing[n-1])
		return invalid(said, references)
	}
}

// ReadModelNew is ReadCandidate of a file that is to be evaluated as it is: one that
// nowhere names ModelNew is refused.
func ReadModelNew(path string) (File, error) {
	f, err := ReadCandidate(path)
	if err == nil && !strings.Contains(f.Source, "ModelNew") {
		err = invalid("the source defines no class ModelNew", candidates)
	}
	return f, err
}
