package report

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/task"
)

//go:embed custom_op.py.tmpl
var customOp string

var customOpTemplate = template.Must(template.New("custom_op.py").Parse(customOp))

// DropIn says how a kernel is written that stands in other programs.
type DropIn struct {
	Module   string // what it is imported as
	Self     string // its file's or folder's name
	Package  bool   // kernel and reference lie in files beside it
	Autograd bool   // gradients by the reference
}

// ExportedAs is added to the certificate of what holds a kernel: what it is, and the
// SHA-256 (hex) of each of its files.
type ExportedAs struct {
	Form     string            `json:"form"` // "custom-op" or "package"
	Operator string            `json:"operator"`
	Autograd bool              `json:"autograd"`
	Files    map[string]string `json:"files"` // by name, with slashes
}

// ErrNoDropIn says that no operator can be made of a kernel. Its text says why.
type ErrNoDropIn struct{ Why string }

func (e *ErrNoDropIn) Error() string { return e.Why }

var notIdentifier = regexp.MustCompile(`[^a-z0-9_]+`)

// Identifier returns a name as Python and PyTorch take it.
func Identifier(name string) string {
	name = strings.Trim(notIdentifier.ReplaceAllString(strings.ToLower(name), "_"), "_")
	switch {
	case name == "" || name[0] >= '0' && name[0] <= '9':
		return "kernel_" + cmp.Or(name, "0")
	case slices.Contains(keywords, name):
		return name + "_0"
	}
	return name
}

var keywords = strings.Fields("and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield none true false kernel reference")

// Operator returns the name of a kernel's operator in PyTorch: its file's hash is in it,
// so that two of one task can be loaded by one program.
func Operator(d Data, sha256 string) string {
	return fmt.Sprintf("kernelwright::%s_%s", Identifier(d.Task.Name), sha256[:8])
}

// CustomOp returns the Python of an operator that computes a certified kernel, with a fake
// implementation by the reference. An *ErrNoDropIn says why there can be none.
func CustomOp(d Data, r kernelwright.Round, in DropIn) (string, error) {
	kernel, sum, err := Exported(r)
	if err != nil {
		return "", err
	}
	switch {
	case d.Task.Source == "":
		return "", &ErrNoDropIn{"the reference's text is not in the record"}
	case len(d.Task.Inputs) == 0:
		return "", &ErrNoDropIn{"the reference takes no tensor"}
	case len(d.Task.Outputs) == 0:
		return "", &ErrNoDropIn{"the reference returns no tensor"}
	}
	if in.Autograd && !slices.ContainsFunc(d.Task.Outputs, func(t kernelwright.TensorSpec) bool { return floating(t.DType) }) {
		return "", &ErrNoDropIn{"the reference is not differentiable: it returns no floating-point tensor"}
	}
	v := Counts(r)
	names := make([]string, len(d.Task.Inputs))
	for i := range names {
		names[i] = fmt.Sprintf("input%d", i)
		if n := d.Task.Inputs[i].Name; pythonName.MatchString(n) && !slices.Contains(keywords, n) && n != "self" && !slices.Contains(names[:i], n) {
			names[i] = n
		}
	}
	device := "cpu"
	if strings.HasPrefix(d.Run.Device, "cuda") {
		device = "cuda"
	}
	// Where texts do not end in a line end, literals would: so they are quoted.
	literal := func(text string) string {
		if raw := task.Literal(text); strings.HasSuffix(text, "\n") && !strings.ContainsAny(text, "\r\x00") && strings.HasPrefix(raw, "r") {
			return raw
		}
		return quoted(text)
	}
	title := d.Task.Name + " as an operator"
	var b strings.Builder
	err = customOpTemplate.Execute(&b, map[string]any{
		"Title": inDocstring(title), "Version": kernelwright.Version, "Says": inDocstring(FiguresOf(v)), "Self": in.Self, "Module": in.Module, "Package": in.Package,
		"Autograd": in.Autograd, "Operator": quoted(Operator(d, sum)), "Kernel": literal(kernel), "Reference": literal(d.Task.Source),
		"Inputs": names, "InputList": strings.Join(names, ", "), "One": len(d.Task.Outputs) == 1, "Device": quoted(device),
	})
	return b.String(), err
}

var pythonName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func floating(dtype string) bool {
	return strings.HasPrefix(dtype, "float") || strings.HasPrefix(dtype, "bfloat") || strings.HasPrefix(dtype, "complex")
}

// quoted is a text as a literal of Python, which JSON's are.
func quoted(text string) string {
	b, _ := json.Marshal(text) // a text has one
	return string(b)
}

func inDocstring(text string) string {
	return strings.NewReplacer(`\`, "/", `"""`, `'''`).Replace(Line(text))
}

// CertificateFor returns the certificate of a certified round as JSON, to lie with what
// holds its kernel.
func CertificateFor(d Data, r kernelwright.Round, as ExportedAs) ([]byte, error) {
	v := Counts(r)
	if v.Status != kernelwright.Certified {
		return nil, errors.New("the round is not certified")
	}
	_, sum, err := Exported(r)
	if err != nil {
		return nil, err
	}
	v.Exported, v.ExportedSHA256 = "", sum
	d.File = ""
	return encoded(struct {
		Certificate
		ExportedAs ExportedAs `json:"exported_as"`
	}{newCertificate(d, r, v), as})
}

// named is the line of an exported file that names its certificate.
var named = regexp.MustCompile(`(?m)^Certificate: ([^/\\\n]+\.certificate\.json)\r?$`)

// maxName is how long the name of a file may be, in bytes.
const maxName = 255

// CertificateIn returns the name that an exported file gives its certificate, "" where it
// gives none that a file can have.
func CertificateIn(file string) string {
	if m := named.FindStringSubmatch(file); m != nil && len(m[1]) <= maxName {
		return m[1]
	}
	return ""
}

// CertificateOf returns the certificate of a certified round as JSON, to lie beside its
// kernel in a file of this name.
func CertificateOf(d Data, r kernelwright.Round, file string) (certificate []byte, err error) {
	v := Counts(r)
	_, v.ExportedSHA256, err = Exported(r)
	if err != nil {
		return nil, err
	}
	v.Exported, d.File, d.Rounds = "", file, []kernelwright.Round{r}
	return encoded(newCertificate(d, r, v))
}
