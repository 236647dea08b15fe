package audit

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright/task"
)

// kind is what a file seems to be.
type kind int

const (
	other     kind = iota
	reference      // defines Model and get_inputs, and no ModelNew
	candidate      // defines ModelNew
	notPython      // its name says Python, and its bytes are none
)

var (
	definesNew   = regexp.MustCompile(`(?m)^(?:class\s+ModelNew\b|ModelNew\s*=)`)
	definesModel = regexp.MustCompile(`(?m)^class\s+Model\b`)
	// What the text of a reference or of a candidate has, and hardly any other.
	isCode        = regexp.MustCompile(`(?m)^class\s+Model(?:New)?\b|^def\s+get_inputs\b|\b__global__\b|\bload_inline\s*\(`)
	definesInputs = regexp.MustCompile(`(?m)^(?:def\s+get_inputs\b|get_inputs\s*=)`)
	// What a candidate that is broken is told by.
	calledLikeOne = regexp.MustCompile(`(?i)(^|_)(kernel|kernels|candidate|solution|generated|optimi[sz]ed|model_new)(_|\d|$)`)
)

// kindOf reads a file for what it seems to be. Nothing is kept of it.
func kindOf(path string) kind {
	f, err := task.Read(path)
	if err != nil {
		return notPython
	}
	switch {
	case definesNew.MatchString(f.Source):
		return candidate
	case definesModel.MatchString(f.Source) && definesInputs.MatchString(f.Source):
		return reference
	}
	return other
}

// What the pairs of a set are recognised as, in words.
const (
	asRuns    = "KernelBench's runs"
	asFolders = "folders of a reference and its candidates"
	asLoose   = "candidates whose references lie elsewhere"
	asJSON    = "JSON"
	asParquet = "Parquet"
)

// folder reads a folder, and those in it.
func (f *finder) folder(path string) error {
	err := walk(path, func(p string, d fs.DirEntry) error {
		if !d.IsDir() {
			return nil
		}
		if isWorkFolder(p) {
			f.workFolder(p)
			return filepath.SkipDir
		}
		return f.files(p)
	})
	if err == nil {
		f.alone()
	}
	return err
}

// alone takes bare sources that stand for themselves: no candidate lies beside
// them, or in a folder above, that may be what they are a part of.
func (f *finder) alone() {
	for _, p := range f.bare {
		part := false
		for dir := filepath.Dir(p); !part && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			if part = f.candidates[dir]; dir == f.base {
				break
			}
		}
		if reference := f.referenceOf(p); !part && (reference.Err() == nil || len(f.set.Pairs) > 0) {
			f.add(asLoose, Pair{Reference: reference, Candidate: fileText(p)})
		}
	}
}

// isWorkFolder tells a folder in CUDA Agent's form: model_new.py with sources.
func isWorkFolder(path string) bool {
	if _, err := os.Stat(filepath.Join(path, "model_new.py")); err != nil {
		return false
	}
	for _, pattern := range []string{"*.cu", "*.cpp", "kernels/*.cu", "kernels/*.cpp"} {
		if found, err := fs.Glob(os.DirFS(path), pattern); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

func (f *finder) workFolder(path string) {
	whole := fileText(path)
	for _, name := range []string{"model.py", "reference.py", "ref.py"} {
		if p := filepath.Join(path, name); kindOf(p) == reference {
			f.add(asFolders, Pair{Reference: fileText(p), Candidate: whole})
			return
		}
	}
	f.add(asLoose, Pair{Reference: f.referenceOf(path), Candidate: whole})
}

// sorted is the files of one folder by what they are.
type sorted struct {
	runs, references, candidates, broken, rest, sources, ours []string
}

// sortFiles returns the files of a folder, and those that are tables of pairs, if of anything.
func sortFiles(path string) (s sorted, tables []string) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return s, nil // it has nothing for us
	}
	for _, e := range entries {
		p, name := filepath.Join(path, e.Name()), e.Name()
		switch ext := strings.ToLower(filepath.Ext(name)); {
		case e.IsDir() || strings.HasPrefix(name, ".") || name == "__init__.py":
		case strings.HasSuffix(name, ".best.py"):
			s.ours = append(s.ours, p)
		case ext == ".py" && runFile.MatchString(name):
			s.runs = append(s.runs, p)
		case ext == ".py":
			switch kindOf(p) {
			case reference:
				s.references = append(s.references, p)
			case candidate:
				s.candidates = append(s.candidates, p)
			case notPython:
				s.broken = append(s.broken, p)
			case other:
				s.rest = append(s.rest, p)
			}
		case ext == ".cu" || ext == ".cpp":
			s.sources = append(s.sources, p)
		case isJSON(p) || isParquet(p):
			tables = append(tables, p)
		}
	}
	return s, tables
}

// files takes the pairs of which a folder itself has the candidates.
func (f *finder) files(path string) error {
	s, tables := sortFiles(path)
	f.ours = append(f.ours, s.ours...)
	var claims runClaims
	if len(s.runs) > 0 {
		var problems []string
		claims, problems = claimsOf(path)
		for _, problem := range problems {
			f.add("", unread(path, problem))
		}
	}
	if severalLevels(s.runs) { // a claim names the problem alone, and each level has one of that number
		claims = nil
	}
	for _, p := range s.runs {
		f.add(asRuns, Pair{Reference: f.referenceOf(p), Candidate: fileText(p), Claim: claims.of(p)})
	}
	for _, p := range s.published() {
		switch {
		case len(s.references) == 1:
			f.add(asFolders, Pair{Reference: fileText(s.references[0]), Candidate: fileText(p)})
		case len(s.references) > 1:
			f.add(asFolders, Pair{Reference: f.oneOf(s.references, p), Candidate: fileText(p)})
		default:
			f.add(asLoose, Pair{Reference: f.referenceOf(p), Candidate: fileText(p)})
		}
	}
	if f.candidates[path] = len(s.runs)+len(s.published()) > 0; !f.candidates[path] {
		f.bare = append(f.bare, s.sources...)
		if files := slices.Sorted(slices.Values(append(s.rest, s.broken...))); len(files) > 0 && len(s.references) == 0 {
			f.left.add(f.base, files)
		}
	}
	for _, p := range tables {
		read := func(string) error { return nil }
		switch {
		case isParquet(p):
			read = func(p string) error { return f.parquet(p, false) }
		default:
			switch isPair, code := looksLikePairs(p); {
			case isPair:
				read = f.json
			case len(code) > 0:
				f.left.table(f.base, p, code)
			}
		}
		if err := read(p); err != nil {
			return err
		}
	}
	return nil
}

// published returns the files of a folder that stand as candidates. Beside a
// reference a file that is broken is one, too: what else should it be? Where
// nothing is one, whatever lies there was published as one.
func (s sorted) published() []string {
	out := slices.Clone(s.candidates)
	if len(s.references) == 0 {
		return out
	}
	out = append(out, s.broken...)
	for _, p := range s.rest {
		if calledLikeOne.MatchString(strings.TrimSuffix(filepath.Base(p), ".py")) {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		out = slices.Clone(s.sources)
		if len(s.references) == 1 {
			out = append(out, s.rest...)
		}
	}
	slices.Sort(out)
	return out
}

// oneOf returns the reference of several beside a candidate that has its name.
func (f *finder) oneOf(references []string, candidate string) Text {
	var fits []string
	for _, r := range references {
		if key(filepath.Base(r)) == key(filepath.Base(candidate)) {
			fits = append(fits, r)
		}
	}
	if path := only(fits); path != "" {
		return fileText(path)
	}
	if f.named.size() > 0 {
		return f.referenceOf(candidate)
	}
	return missing("several references lie beside it, and none has its name", "name them alike (ref_1.py, kernel_1.py), or put each reference into a folder of its own")
}

// looksLikePairs reports whether the first object of a file of JSON is a pair: a
// folder has other JSON, too. Of one that is none it returns the fields that hold code.
func looksLikePairs(path string) (isPair bool, code []string) {
	f, err := os.Open(path)
	if err != nil {
		return false, nil
	}
	defer f.Close()
	all := readObjects(f)
	o, err := all.next()
	if err != nil || o.problem != "" {
		return false, nil
	}
	fields, names, isPair := fieldsOf(o.raw)
	if isPair {
		return true, nil
	}
	for low, value := range fields {
		var text string
		if json.Unmarshal(value, &text) == nil && isCode.MatchString(text) {
			code = append(code, names[low])
		}
	}
	slices.Sort(code)
	return false, code
}
