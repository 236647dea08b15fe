package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// Held is a certificate with what it says of the files that it lies with.
type Held struct {
	Certificate
	As *ExportedAs `json:"exported_as"` // nil: of the kernel's file alone
}

// ReadCertificate reads a certificate. An error says what is wrong with it, in words
// that follow its name.
func ReadCertificate(text []byte) (h Held, err error) {
	if err := json.Unmarshal(text, &h); err != nil {
		return h, fmt.Errorf("is no certificate: %w", err)
	}
	switch {
	case h.Format == 0 || len(h.SHA256) != 64:
		return h, fmt.Errorf("is no certificate of kernelwright")
	case h.Format > CertificateFormat:
		return h, fmt.Errorf("has format %d, and this version knows %d: install a newer one", h.Format, CertificateFormat)
	}
	return h, nil
}

// Belongs returns why a file does not belong to the certificate; none: it does. It is the
// kernel that was certified, or holds it.
func (h Held) Belongs(file string) (problems []string) {
	sum := kernelwright.HashText(file)
	if sum == h.SHA256 {
		return nil
	}
	if h.As == nil || h.As.Form != "custom-op" {
		return []string{fmt.Sprintf("its SHA-256 is %s, the certified kernel's %s", sum, h.SHA256)}
	}
	kernel, ok := kernelIn(file)
	switch {
	case !ok:
		problems = append(problems, "it holds no kernel where one stands in what kernelwright writes")
	case kernelwright.HashText(kernel) != h.SHA256:
		problems = append(problems, fmt.Sprintf("the kernel in it has the SHA-256 %s, the certified one %s", kernelwright.HashText(kernel), h.SHA256))
	}
	if !slices.Contains(slices.Collect(maps.Values(h.As.Files)), sum) {
		problems = append(problems, fmt.Sprintf("its SHA-256 is %s, that of what was written another: it was edited", sum))
	}
	return problems
}

// FolderBelongs is Belongs of a package's folder, or of its module alone as it is
// installed. read returns a file's text by its name with slashes, and whether there is one.
func (h Held) FolderBelongs(module string, read func(name string) (string, bool)) (problems []string) {
	if h.As == nil {
		return []string{"the certificate is of a file, not of a folder"}
	}
	kernels := 0
	for _, name := range slices.Sorted(maps.Keys(h.As.Files)) {
		inModule := strings.Contains(name, "/")
		at := name
		if module != "" {
			if !inModule { // what pip leaves behind
				continue
			}
			at = path.Base(name)
		}
		text, found := read(at)
		sum := kernelwright.HashText(text)
		switch {
		case !found:
			problems = append(problems, at+" is not there")
			continue
		case sum != h.As.Files[name]:
			problems = append(problems, fmt.Sprintf("%s has the SHA-256 %s, when it was written %s", at, sum, h.As.Files[name]))
		}
		if path.Base(name) == "kernel.py" {
			kernels++
			if sum != h.SHA256 {
				problems = append(problems, fmt.Sprintf("%s has the SHA-256 %s, the certified kernel %s", at, sum, h.SHA256))
			}
		}
	}
	if kernels == 0 {
		problems = append(problems, "the certificate names no kernel.py")
	}
	return problems
}

// kernelIn returns the kernel's text in an operator's file, as CustomOp writes it.
func kernelIn(file string) (string, bool) {
	_, rest, found := strings.Cut(file, "\nKERNEL = ")
	if !found {
		return "", false
	}
	for _, quotes := range []string{`r"""`, `r'''`} {
		if body, raw := strings.CutPrefix(rest, quotes); raw {
			text, _, ends := strings.Cut(body, quotes[1:])
			return text, ends
		}
	}
	line, _, _ := strings.Cut(rest, "\n")
	var text string
	err := json.Unmarshal([]byte(line), &text)
	return text, err == nil
}
