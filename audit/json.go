package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/task"
)

// The names under which sets have published a pair's parts, the best first.
var (
	referenceNames = []string{"reference", "ref_code", "reference_code", "ref_arch_src", "original_code", "pytorch_code", "pytorch_code_module", "ref"}
	candidateNames = []string{
		"candidate", "custom_code", "candidate_code", "kernel_code", "optimized_code", "generated_code", "custom_kernel", "cuda_code", "solution", "kernel", //nolint:misspell // as they are written
	}
	// A reference that calls a function that it is given: bare sources stand for that.
	functionalNames = []string{"pytorch_code_functional"}
	claimNames      = []string{"claimed", "claimed_speedup", "speedup", "score_default", "cuda_speedup_native"}
	againstNames    = []string{"claimed_against", "against"}
	calledNames     = []string{"name", "task", "task_name", "op_name", "kernel_name", "problem"}
)

// The fields of a level's and a task's number.
const levelField, taskField = "level_id", "task_id"

// maxObject is the longest object that is read: two texts of the largest size,
// written with escapes.
const maxObject = 32 << 20

// object is one of a file of JSON, or a row of Parquet.
type object struct {
	raw        []byte
	at, length int64
	number     int    // of its line, or in the list, from 1
	problem    string // why it cannot be read

	bad   map[string]string // of Parquet: why a field has no text, by its name in lower case
	texts *spool            // and where the others are kept
}

// span returns where the text of a field lies.
func (o object) span(path, field, text string) span {
	if o.texts != nil {
		return o.texts.keep(text)
	}
	return jsonSpan{path, o.at, o.length, field}
}

// objects reads a file of JSON one object at a time: lines, a list, or objects one
// after the other.
type objects struct {
	r     *bufio.Reader
	at    int64
	line  int
	dec   *json.Decoder // of what is not by lines
	first bool
	list  bool
}

func readObjects(r io.Reader) *objects {
	return &objects{r: bufio.NewReaderSize(r, 64<<10), first: true}
}

// next returns the next object, or io.EOF. One that cannot be read has a problem;
// after a problem of what is not by lines nothing follows.
func (o *objects) next() (object, error) {
	if o.first {
		o.first = false
		if err := o.begin(); err != nil {
			return object{}, err
		}
	}
	if o.dec != nil {
		return o.decode()
	}
	for {
		o.line++
		at := o.at
		raw, err := o.readLine()
		if len(bytes.TrimSpace(raw)) == 0 && err == nil {
			continue
		}
		found := object{raw: raw, at: at, length: int64(len(raw)), number: o.line}
		switch {
		case errors.Is(err, io.EOF):
			return object{}, io.EOF
		case errors.Is(err, bufio.ErrBufferFull):
			found.raw, found.problem = nil, fmt.Sprintf("the line is longer than %d MiB", maxObject>>20)
		case err != nil:
			return object{}, err
		case !json.Valid(raw):
			found.raw, found.problem = nil, "the line is not JSON"
		}
		return found, nil
	}
}

// begin looks at how the file goes on.
func (o *objects) begin() error {
	head, err := o.r.Peek(64 << 10)
	if err != nil && err != io.EOF {
		return err
	}
	text := bytes.TrimLeft(head, " \t\r\n\ufeff")
	line, _, whole := bytes.Cut(text, []byte("\n"))
	switch {
	case len(text) == 0:
		return io.EOF
	case text[0] == '[':
		o.list = true
	case whole && text[0] == '{' && goesOn(line): // objects that are written over several lines
	default:
		return nil
	}
	o.dec = json.NewDecoder(o.r)
	if !o.list {
		return nil
	}
	_, err = o.dec.Token()
	return err
}

// goesOn reports whether a line is the beginning of something longer.
func goesOn(line []byte) bool {
	line = bytes.TrimSpace(line)
	return !json.Valid(line) && bytes.ContainsAny(line[len(line)-1:], "{[,:")
}

func (o *objects) decode() (object, error) {
	o.line++
	if !o.dec.More() {
		return object{}, io.EOF
	}
	var raw json.RawMessage
	if err := o.dec.Decode(&raw); err != nil {
		number := o.line
		o.dec = json.NewDecoder(strings.NewReader(""))                                                   // what follows cannot be told apart
		return object{number: number, problem: "from here on the file is not JSON: " + err.Error()}, nil //nolint:nilerr // it is told of the object
	}
	end := o.dec.InputOffset()
	return object{raw: raw, at: end - int64(len(raw)), length: int64(len(raw)), number: o.line}, nil
}

// readLine returns a line without its end. One that is too long is skipped, with
// bufio.ErrBufferFull.
func (o *objects) readLine() ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := o.r.ReadSlice('\n')
		o.at += int64(len(part))
		if long = long || len(line)+len(part) > maxObject; long {
			line = nil
		} else {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == io.EOF && len(line) == 0 && !long:
			return nil, io.EOF
		case err != nil && err != io.EOF:
			return nil, err
		case long:
			return nil, bufio.ErrBufferFull
		}
		return bytes.TrimRight(line, "\r\n"), nil
	}
}

// fieldsOf reads an object's names in lower case, and says whether it is a pair.
func fieldsOf(raw []byte) (fields map[string]json.RawMessage, names map[string]string, isPair bool) {
	var written map[string]json.RawMessage
	if json.Unmarshal(raw, &written) != nil {
		return nil, nil, false
	}
	fields, names = map[string]json.RawMessage{}, map[string]string{}
	for name, value := range written {
		low := strings.ToLower(name)
		fields[low], names[low] = value, name
	}
	return fields, names, first(fields, referenceNames) != "" && first(fields, candidateNames) != ""
}

// first returns the first of these names that an object has.
func first[V any](fields map[string]V, of []string) string {
	for _, name := range of {
		if _, has := fields[name]; has {
			return name
		}
	}
	return ""
}

// json reads the pairs of a file.
func (f *finder) json(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return nothing(path+" cannot be read: "+err.Error(), "see that the file and its disk are in order")
	}
	defer file.Close()
	all := readObjects(file)
	for n := 1; ; n++ {
		o, err := all.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return nothing(path+" cannot be read: "+err.Error(), "it takes JSON lines, or a list of objects")
		}
		if n > maxPairs {
			f.add(asJSON, unusable(label(path, o.number, ""), "from here on the file is not read: "+tooMany().Error(), "split the file"))
			return nil
		}
		f.add(asJSON, f.pairOf(path, o))
	}
}

// pairOf makes a pair of an object.
func (f *finder) pairOf(path string, o object) Pair {
	if o.problem != "" {
		return unusable(label(path, o.number, ""), o.problem, "mend the line, or take it out")
	}
	fields, names, isPair := fieldsOf(o.raw)
	if !isPair {
		return unusable(label(path, o.number, nameOf(fields)), "it has no reference and candidate", `a line is an object such as {"reference": ..., "candidate": ..., "claimed": 1.5}, with texts or paths`)
	}
	return f.pairFrom(path, o, fields, names)
}

// pairFrom makes a pair of the fields of an object that is one. Names are the
// fields' as they are written.
func (f *finder) pairFrom(path string, o object, fields map[string]json.RawMessage, names map[string]string) Pair {
	called := label(path, o.number, nameOf(fields))
	r, c := first(fields, referenceNames), first(fields, candidateNames)
	var source string
	if name := first(fields, functionalNames); name != "" && json.Unmarshal(fields[c], &source) == nil && isBare(source) {
		r = name
	}
	p := Pair{
		Reference: f.part(path, o, called, names[r], fields[r], "reference"),
		Candidate: f.part(path, o, called, names[c], fields[c], "candidate"),
	}
	var speedup float64
	if name := first(fields, claimNames); name != "" && json.Unmarshal(fields[name], &speedup) == nil && speedup > 0 {
		p.Claim = &kernelwright.Claim{Speedup: speedup, Against: "eager"}
		if name := first(fields, againstNames); name != "" {
			var against string
			if json.Unmarshal(fields[name], &against) == nil && against != "" {
				p.Claim.Against = against
			}
		}
	}
	return p
}

func unusable(called, reason, hint string) Pair {
	t := missing(reason, hint)
	t.Label = called
	return Pair{Reference: t, Candidate: t}
}

// maxPath is the longest value that is taken for a path.
const maxPath = 1024

// part is where a pair's reference or candidate lies: in the value itself, or in
// the file that it names.
func (f *finder) part(path string, o object, called, field string, value json.RawMessage, what string) Text {
	if reason := o.bad[strings.ToLower(field)]; reason != "" {
		t := missing(fmt.Sprintf("its %s cannot be read: %s", what, reason), fmt.Sprintf("a text of %q is UTF-8, and of %d MiB at most", field, task.MaxBytes>>20))
		t.Label = called
		return t
	}
	var text *string
	err := json.Unmarshal(value, &text)
	if err != nil || text == nil || strings.TrimSpace(*text) == "" || *text == "None" {
		t := missing(fmt.Sprintf("no %s was published for it", what), fmt.Sprintf("%q has no text there", field))
		t.Label = called
		return t
	}
	isPath := len(*text) < maxPath && !strings.ContainsAny(*text, "\n\r(\x00")
	if !isPath {
		return Text{Label: called, path: path, in: o.span(path, field, *text), hash: kernelwright.HashText(*text)}
	}
	folder := filepath.Dir(path)
	name := filepath.Clean(filepath.FromSlash(*text))
	if what == "reference" {
		if at := slices.IndexFunc(f.named.all, func(named string) bool { return filepath.Base(named) == filepath.Base(name) }); at >= 0 {
			return fileText(f.named.all[at])
		}
	}
	if filepath.IsAbs(name) {
		if below, err := filepath.Rel(folder, name); err == nil {
			name = below
		}
	}
	return Text{Label: filepath.Join(folder, name), path: name, folds: folder}
}

// nameOf is what an object calls itself, for people.
func nameOf(fields map[string]json.RawMessage) string {
	for _, name := range calledNames {
		var text string
		if json.Unmarshal(fields[name], &text) == nil && text != "" && len(text) < 100 {
			return text
		}
	}
	var level, task json.Number
	if json.Unmarshal(fields[levelField], &level) == nil && json.Unmarshal(fields[taskField], &task) == nil && task != "" {
		return fmt.Sprintf("level %s, task %s", level, task)
	}
	return ""
}
