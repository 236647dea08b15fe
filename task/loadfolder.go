package task

import (
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// A work folder may also build by itself: model_new.py calls
// torch.utils.cpp_extension.load with files that lie beside it.
var (
	callsLoad   = regexp.MustCompile(`\bload[ \t]*\(|\bcpp_extension\b`)
	importsSome = regexp.MustCompile(`(?m)^(?:import|from)[ \t]+\w`)
	fromFuture  = regexp.MustCompile(`^from[ \t]+__future__\b`)
	loadFolders = []string{"", "kernels", "src", "csrc", "include"}
	loadEndings = []string{".cpp", ".cc", ".cxx", ".cu", ".h", ".hpp", ".cuh"}
)

// withFiles returns the text of a model that writes the folder's files to a
// folder of its own before it does anything else, and takes itself to lie there.
// A text that builds nothing by itself is returned as it is.
func withFiles(source string, f folder) (string, error) {
	if !callsLoad.MatchString(source) {
		return source, nil
	}
	var files strings.Builder
	count, byName := 0, false
	for _, in := range loadFolders {
		for _, ending := range loadEndings {
			found, err := f.list(in, ending)
			if err != nil {
				return "", err
			}
			for _, p := range found {
				text, err := f.read(p)
				if err != nil {
					return "", err
				}
				name := path.Join(in, filepath.Base(p))
				fmt.Fprintf(&files, "        %q: %s,\n", name, Literal(text))
				byName = byName || strings.Contains(source, `"`+name+`"`) || strings.Contains(source, `'`+name+`'`)
				count++
			}
		}
	}
	if count == 0 {
		return source, nil
	}
	if count > maxWorkFiles {
		return "", invalid(fmt.Sprintf("it has %d sources", count), fmt.Sprintf("%d are read at most", maxWorkFiles))
	}
	goes := ""
	if byName { // as if it were run there
		goes = "    os.chdir(folder)\n"
	}
	head := "def _work_folder():\n" +
		"    # The files of a work folder, as they lay in it.\n" +
		"    import os\n    import tempfile\n\n" +
		"    folder = tempfile.mkdtemp()\n" +
		"    files = {\n" + files.String() + "    }\n" +
		"    for name, text in files.items():\n" +
		"        path = os.path.join(folder, name)\n" +
		"        os.makedirs(os.path.dirname(path), exist_ok=True)\n" +
		"        with open(path, \"w\", encoding=\"utf-8\") as f:\n" +
		"            f.write(text)\n" + goes +
		"    return os.path.join(folder, \"" + workModel + "\")\n\n\n" +
		"__file__ = _work_folder()\n"
	at := len(source)
	for _, m := range statements(source, importsSome) {
		if !fromFuture.MatchString(source[m[0]:]) {
			at = m[0]
			break
		}
	}
	out := source[:at] + head + source[at:]
	if len(out) > MaxBytes {
		return "", tooLarge()
	}
	return out, nil
}
