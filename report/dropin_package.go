package report

import (
	"fmt"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// PackageProject is the pyproject.toml of a package with a kernel. Its version has the
// run and the round, so that a later kernel is a later version.
func PackageProject(d Data, r kernelwright.Round, module string) string {
	return fmt.Sprintf(`[build-system]
requires = ["setuptools>=68"]
build-backend = "setuptools.build_meta"

[project]
name = %s
version = "0.%d.%d"
description = %s
readme = "README.md"
requires-python = ">=3.10"
dependencies = ["torch>=2.5"]

[tool.setuptools]
packages = [%s]

[tool.setuptools.package-data]
%s = ["certificate.json"]
`, quoted(strings.ReplaceAll(module, "_", "-")), d.Run.ID, r.Index, quoted("A certified kernel for "+Line(d.Task.Name)+", as an operator of PyTorch"), quoted(module), module)
}

// PackageReadme is the README.md of a package with a kernel.
func PackageReadme(d Data, r kernelwright.Round, module string) string {
	v := Counts(r)
	return fmt.Sprintf(`# %[1]s

An operator of PyTorch with a certified kernel, written by kernelwright %[2]s. %[3]s

    pip install .
    python -m %[1]s          # holds it against the reference, alone and compiled

    from %[1]s import Kernel
    model = Kernel().eval()

Kernel stands for Model of reference.py, built with its get_init_inputs(). kernel.py is the file that the SHA-256 in certificate.json is of. The certificate says on which device, how fast, and what it was held to. `+"`kernelwright verify`"+` of this folder says whether they belong together. The licence is yours to add.
`, module, kernelwright.Version, strings.TrimPrefix(FiguresOf(v)+".", "."))
}
