package audit

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// index is references by what their candidates are told by: level and number, and
// name. A name that two have tells none.
type index struct {
	all      []string
	byNumber map[[2]string][]string // level, which may be empty, and number
	byName   map[string][]string
}

func (x *index) size() int { return len(x.all) }

var (
	runFile   = regexp.MustCompile(`(?i)level_?(\d+)_prob(?:lem)?_?(\d+)(?:_sample_?(\d+))?`)
	levelName = regexp.MustCompile(`(?i)^level_?(\d+)$`)
	inFront   = regexp.MustCompile(`^0*(\d+)[_-]`)
	wordEnds  = regexp.MustCompile(`[^a-z0-9]+`)
)

// said are words of a file's name that say what kind of file it is.
var said = map[string]bool{}

func init() {
	//nolint:misspell // as they are written
	for _, word := range strings.Fields("model new ref reference kernel kernels test candidate custom cuda triton cpp opt optimized optimised solution generated best code torch pytorch final sample problem") {
		said[word] = true
	}
}

// key is what of a name tells which task it is of: "test_kernel_0" and "ref_0"
// are of the same.
func key(name string) string {
	var kept []string
	for _, word := range wordEnds.Split(strings.ToLower(strings.TrimSuffix(name, filepath.Ext(name))), -1) {
		if word != "" && !said[word] {
			kept = append(kept, word)
		}
	}
	return strings.Join(kept, "_")
}

// indexOf reads which references there are at paths.
func indexOf(paths []string) (*index, error) {
	x := &index{byNumber: map[[2]string][]string{}, byName: map[string][]string{}}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, nothing("there is no file or folder "+path, "--references names a folder of references, or one of them")
		}
		before := len(x.all)
		if !info.IsDir() && kindOf(path) == reference {
			x.add(path)
		} else if !info.IsDir() {
			return nil, nothing(path+" is no reference", "a reference defines Model and get_inputs()")
		} else if err := x.addFolder(path); err != nil {
			return nil, err
		}
		if len(x.all) == before {
			return nil, nothing("there is no reference in "+path, "a reference defines Model and get_inputs()")
		}
	}
	return x, nil
}

func (x *index) addFolder(path string) error {
	return walk(path, func(p string, d fs.DirEntry) error {
		if !d.IsDir() && filepath.Ext(p) == ".py" && kindOf(p) == reference {
			x.add(p)
		}
		return nil
	})
}

func (x *index) add(path string) {
	x.all = append(x.all, path)
	base := filepath.Base(path)
	if k := key(base); k != "" {
		x.byName[k] = append(x.byName[k], path)
	}
	if m := inFront.FindStringSubmatch(base); m != nil {
		level := ""
		if l := levelName.FindStringSubmatch(filepath.Base(filepath.Dir(path))); l != nil {
			level = l[1]
		}
		x.byNumber[[2]string{level, m[1]}] = append(x.byNumber[[2]string{level, m[1]}], path)
	}
}

// find returns the one reference that a candidate's path tells, or "". The names
// of its folders below base count, the nearest first.
func (x *index) find(candidate, base string) string {
	if len(x.all) == 1 {
		return x.all[0]
	}
	names := []string{filepath.Base(candidate)}
	for dir := filepath.Dir(candidate); ; dir = filepath.Dir(dir) {
		names = append(names, filepath.Base(dir))
		if dir == base || dir == filepath.Dir(dir) {
			break
		}
	}
	if m := runFile.FindStringSubmatch(names[0]); m != nil {
		return only(x.byNumber[[2]string{m[1], m[2]}], x.byNumber[[2]string{"", m[2]}])
	}
	level := ""
	for _, name := range names[1:] {
		if m := levelName.FindStringSubmatch(name); m != nil && level == "" {
			level = m[1]
		}
	}
	for _, name := range names {
		if path := only(x.byName[key(name)]); path != "" {
			return path
		}
		m := inFront.FindStringSubmatch(name + "_")
		if m == nil {
			continue
		}
		if path := only(x.byNumber[[2]string{level, m[1]}], x.byNumber[[2]string{"", m[1]}]); path != "" {
			return path
		}
	}
	return ""
}

// only returns what the first list has that is not empty, where that is one.
func only(lists ...[]string) string {
	for _, l := range lists {
		if len(l) > 0 {
			if len(l) == 1 {
				return l[0]
			}
			return ""
		}
	}
	return ""
}

// levelsAbove is how many folders above a set are looked into for KernelBench's
// references: runs/NAME lies two below its checkout.
const levelsAbove = 3

// nearby returns the references of a KernelBench that lies in a folder or above it.
func nearby(path string) *index {
	for range levelsAbove {
		for _, folder := range []string{filepath.Join(path, "KernelBench"), path} {
			if info, err := os.Stat(filepath.Join(folder, "level1")); err != nil || !info.IsDir() {
				continue
			}
			if x, err := indexOf([]string{folder}); err == nil {
				return x
			}
		}
		path = filepath.Dir(path)
	}
	return &index{}
}

// walk calls see with all that lies below a folder, in the order of names, but for
// what is hidden. What cannot be read is left out.
func walk(path string, see func(string, fs.DirEntry) error) error {
	return filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		switch hidden := strings.HasPrefix(filepath.Base(p), ".") || slices.Contains([]string{"__pycache__", "node_modules"}, filepath.Base(p)); {
		case err != nil && p == path:
			return err
		case err != nil:
			return nil //nolint:nilerr // it has nothing for us
		case hidden && p != path && d.IsDir():
			return filepath.SkipDir
		case hidden && p != path:
			return nil
		}
		return see(p, d)
	})
}
