package task

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// A work folder is the form in which CUDA Agent's tools leave a candidate:
// model_new.py, which imports cuda_extension, and beside it, or in kernels/, the
// C++ and CUDA sources that cuda_extension is built from.
const (
	workModel     = "model_new.py"
	workExtension = "cuda_extension"
	maxWorkFiles  = 200
)

var (
	importsExtension = regexp.MustCompile(`(?m)^([ \t]*)(?:import[ \t]+cuda_extension(?:[ \t]+as[ \t]+(\w+))?|from[ \t]+cuda_extension[ \t]+import[ \t]+(\w[\w, \t]*))[ \t]*(?:#[^\r\n]*)?(\r?)$`)
	localInclude     = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)".*$`)
	patternSigns     = regexp.MustCompile(`[*?\[\\]`) // of filepath.Glob
	plainLines       = strings.NewReplacer("\r\n", "\n", "\r", "\n")
	pragmaOnce       = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*pragma[ \t]+once[ \t]*$`)
)

// ReadCandidate reads a candidate: a Python file, or a work folder, whose
// sources become one load_inline in the text of its model_new.py. Errors are
// Read's.
func ReadCandidate(path string) (File, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		f, err := Read(path)
		return f, ofCandidate(err)
	}
	model, err := Read(filepath.Join(path, workModel))
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, invalid("it is a folder without a "+workModel, "name a Python file, or a work folder: "+workModel+" with its *.cu and *.cpp, there or in kernels/")
	}
	if err != nil {
		return File{}, ofCandidate(err)
	}
	model.Path, model.Name = path, filepath.Base(filepath.Clean(path))
	return join(model, onDisk(path))
}

// What a file defines, for hints.
var (
	references = kernelwright.Shared.TaskForm
	candidates = "a candidate defines class ModelNew(nn.Module)"
	noPython   = "drop the Python file that defines Model instead"
)

// ofCandidate gives the error of a text that is to be a candidate's the hint of one.
func ofCandidate(err error) error {
	if bad, ok := errors.AsType[*kernelwright.InvalidTaskError](err); ok && (bad.Hint == references || bad.Hint == noPython) {
		said := *bad
		said.Hint = candidates
		return &said
	}
	return err
}

// JoinFiles is ReadCandidate for a work folder that is nowhere on a disk: files
// by their path in it, with slashes. Errors are *kernelwright.InvalidTaskError.
func JoinFiles(files map[string]string) (File, error) {
	text, ok := files[workModel]
	if !ok {
		return File{}, invalid("there is no "+workModel, "write "+workModel+", which defines ModelNew")
	}
	source, err := Decode([]byte(text))
	if err != nil {
		return File{}, ofCandidate(err)
	}
	return join(File{Path: workModel, Name: name(workModel), Source: source}, inMemory(files))
}

// join puts the sources of a work folder into its model.
func join(model File, f folder) (File, error) {
	w := workFolder{folder: f}
	cpp, cuda, err := w.sources()
	if err != nil {
		return File{}, err
	}
	text := strings.TrimPrefix(model.Source, "\ufeff")
	imports := statements(text, importsExtension)
	if len(imports) == 0 {
		model.Source, err = withFiles(model.Source, f)
		return model, err
	}
	if len(cpp)+len(cuda) == 0 {
		return model, nil // nothing of it is built: the verdict will say what is missing
	}
	at := imports[0][0]
	for _, m := range slices.Backward(imports) {
		text = text[:m[0]] + inPlace(text[m[0]:m[1]]) + text[m[1]:]
	}
	head := strings.TrimRight(text[:at], "\r\n")
	if head != "" {
		head += "\n\n\n"
	}
	call := "def _work_folder():\n" +
		"    # The sources of a work folder, as they lay in it.\n" +
		"    from torch.utils.cpp_extension import load_inline\n\n" +
		"    return load_inline(\n" +
		"        name=" + strconv.Quote(workExtension) + ",\n" +
		"        cpp_sources=[" + list(cpp) + "],\n" +
		"        cuda_sources=[" + list(cuda) + "],\n" +
		"        extra_cflags=[\"-O3\"],\n" +
		"        extra_cuda_cflags=[\"-O3\", \"--use_fast_math\"],\n" +
		"        no_implicit_headers=True,\n" +
		"    )\n\n\n"
	if len(cuda) == 0 {
		call = strings.Replace(call, "        extra_cuda_cflags=[\"-O3\", \"--use_fast_math\"],\n", "", 1)
	}
	model.Source = head + call + text[at:]
	if len(model.Source) > MaxBytes {
		return File{}, tooLarge()
	}
	return model, nil
}

// inPlace returns what stands for a line that imports cuda_extension.
func inPlace(line string) string {
	m := importsExtension.FindStringSubmatch(line)
	if m[3] == "" {
		return m[1] + cmp.Or(m[2], workExtension) + " = _work_folder()" + m[4]
	}
	out := m[1] + workExtension + " = _work_folder()"
	for _, name := range strings.Split(m[3], ",") {
		words := strings.Fields(name) // "f", or "f as g"
		if len(words) == 0 {
			continue
		}
		out += "; " + words[len(words)-1] + " = " + workExtension + "." + words[0]
	}
	return out + m[4]
}

// statements returns where a pattern of whole lines matches outside of strings.
func statements(python string, pattern *regexp.Regexp) (found [][]int) {
	strs := stringsOf(python)
	for _, m := range pattern.FindAllStringIndex(python, -1) {
		if !slices.ContainsFunc(strs, func(s [2]int) bool { return s[0] < m[0] && m[0] < s[1] }) {
			found = append(found, m)
		}
	}
	return found
}

// stringsOf returns from where to where the strings of a Python text go.
func stringsOf(python string) (found [][2]int) {
	for i := 0; i < len(python); {
		switch c := python[i]; c {
		case '#':
			line, _, _ := strings.Cut(python[i:], "\n")
			i += len(line)
		case '"', '\'':
			end := stringEnd(python, i)
			found = append(found, [2]int{i, end})
			i = end
		default:
			i++
		}
	}
	return found
}

// stringEnd returns where a string ends that begins with a quote. One in single
// quotes ends with its line at the latest.
func stringEnd(python string, at int) int {
	quotes := python[at : at+1]
	if long := strings.Repeat(quotes, 3); strings.HasPrefix(python[at:], long) {
		quotes = long
	}
	for i := at + len(quotes); i < len(python); i++ {
		switch {
		case python[i] == '\\':
			i++
		case strings.HasPrefix(python[i:], quotes):
			return i + len(quotes)
		case len(quotes) == 1 && python[i] == '\n':
			return i
		}
	}
	return len(python)
}

func list(sources []string) string {
	var b strings.Builder
	for _, s := range sources {
		b.WriteString("\n            " + Literal(s) + ",")
	}
	if len(sources) > 0 {
		b.WriteString("\n        ")
	}
	return b.String()
}

// Literal returns a source as Python writes it, with a line end at its end: raw
// where that can be, so that a compiler's line is found in it again.
func Literal(s string) string {
	if !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	for _, quotes := range []string{`"""`, `'''`} {
		if !strings.Contains(s, quotes) {
			return "r" + quotes + s + quotes
		}
	}
	return strconv.QuoteToASCII(s)
}

// folder is where the sources of a work folder lie. Paths are its own.
type folder interface {
	// list returns the files directly in a folder of it ("" or "kernels") whose
	// names have the ending.
	list(in, ending string) ([]string, error)
	read(path string) (string, error)
	// inside returns the true path of a file that one at path includes by name,
	// and whether it is a file of the folder.
	inside(path, name string) (string, bool)
}

type workFolder struct {
	folder
	seen map[string]bool // headers that were included
	size int
}

// sources returns the texts of the folder's C++ and CUDA files, each with the
// folder's own headers in it, where they are first included.
func (w *workFolder) sources() (cpp, cuda []string, err error) {
	var paths []string
	for _, in := range []string{"", "kernels"} {
		for _, ending := range []string{".cpp", ".cu"} {
			found, err := w.list(in, ending)
			if err != nil {
				return nil, nil, err
			}
			paths = append(paths, found...)
		}
	}
	if len(paths) > maxWorkFiles {
		return nil, nil, invalid(fmt.Sprintf("it has %d sources", len(paths)), fmt.Sprintf("%d are read at most", maxWorkFiles))
	}
	// What binds comes last: it may call what the others define.
	slices.SortStableFunc(paths, func(a, b string) int { return rank(a) - rank(b) })
	headers := map[string]map[string]bool{".cpp": {}, ".cu": {}} // by what is compiled as one
	for _, path := range paths {
		ending := filepath.Ext(path)
		w.seen = headers[ending]
		text, err := w.text(path, 0)
		if err != nil {
			return nil, nil, err
		}
		if ending == ".cu" {
			cuda = append(cuda, text)
		} else {
			cpp = append(cpp, text)
		}
	}
	return cpp, cuda, nil
}

func rank(path string) int {
	if filepath.Base(filepath.Dir(path)) == "kernels" {
		return 0
	}
	return 1
}

// maxIncludes is how deep headers of the folder may include each other.
const maxIncludes = 20

// text returns a source with the folder's headers in place of its #include of
// them. A header that lies elsewhere, or was there before, is left to the
// compiler, or out.
func (w *workFolder) text(path string, depth int) (string, error) {
	source, err := w.read(path)
	if err != nil {
		return "", err
	}
	source = plainLines.Replace(strings.TrimPrefix(source, "\ufeff")) // as Python reads a literal
	if w.size += len(source); w.size > MaxBytes {
		return "", tooLarge()
	}
	var failed error
	text := localInclude.ReplaceAllStringFunc(source, func(line string) string {
		name := localInclude.FindStringSubmatch(line)[1]
		header, inside := w.inside(path, name)
		if !inside || depth >= maxIncludes || failed != nil {
			return line
		}
		if w.seen[header] {
			return "// " + name + ": above"
		}
		w.seen[header] = true
		included, err := w.text(header, depth+1)
		if err != nil {
			failed = err
			return line
		}
		return pragmaOnce.ReplaceAllString(strings.TrimRight(included, "\n"), "")
	})
	return text, failed
}

// onDisk is the path of a work folder.
type onDisk string

func (root onDisk) list(in, ending string) ([]string, error) {
	path := patternSigns.ReplaceAllString(filepath.Join(string(root), in), `\$0`)
	found, err := filepath.Glob(filepath.Join(path, "*"+ending))
	if err != nil {
		return nil, invalid("its folder cannot be listed: "+err.Error(), "give it another name")
	}
	return found, nil
}

func (onDisk) read(path string) (string, error) {
	f, err := Read(path)
	return f.Source, err
}

func (root onDisk) inside(path, name string) (string, bool) {
	top, err := filepath.EvalSymlinks(string(root))
	if err != nil {
		return "", false
	}
	if path, err = filepath.EvalSymlinks(filepath.Join(filepath.Dir(path), filepath.FromSlash(name))); err != nil {
		return "", false
	}
	relative, err := filepath.Rel(top, path)
	if err != nil || relative == ".." || strings.HasPrefix(relative, ".."+string(filepath.Separator)) {
		return "", false
	}
	info, err := os.Stat(path)
	return path, err == nil && info.Mode().IsRegular()
}

// inMemory is a work folder's files by their path.
type inMemory map[string]string

func (files inMemory) list(in, ending string) ([]string, error) {
	var found []string
	for name := range files {
		if path.Ext(name) == ending && path.Join(in, path.Base(name)) == name {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found, nil
}

func (files inMemory) read(name string) (string, error) { return Decode([]byte(files[name])) }

func (files inMemory) inside(from, name string) (string, bool) {
	name = path.Join(path.Dir(from), name)
	_, ok := files[name]
	return name, ok
}
