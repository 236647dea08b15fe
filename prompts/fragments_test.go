package prompts

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/internal/soak"
)

// fragment is one fenced block of a skill. A fence is "```LANGUAGE WORD...";
// what is only an excerpt is fenced as text and not looked at.
type fragment struct {
	skill    string
	line     int // of the first line of its code, in the file
	language string
	words    []string
	code     string
}

// String names it as compilers name places.
func (f fragment) String() string { return fmt.Sprintf("skills/%s.md:%d", f.skill, f.line) }

// fragmentsOf returns the blocks of a language in all skills of the program.
func fragmentsOf(t *testing.T, language string) []fragment {
	t.Helper()
	var found []fragment
	for _, f := range fragments(t) {
		if f.language == language {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no skill has a fragment in %s", language)
	}
	return found
}

func fragments(t *testing.T) []fragment {
	t.Helper()
	entries, err := skillFiles.ReadDir(skillsFolder)
	if err != nil {
		t.Fatal(err)
	}
	var all []fragment
	for _, e := range entries {
		b, err := skillFiles.ReadFile(skillsFolder + "/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(e.Name(), ".md")
		var open *fragment
		for i, line := range strings.Split(string(b), "\n") {
			switch fence, isFence := strings.CutPrefix(line, "```"); {
			case isFence && open == nil:
				words := strings.Fields(fence)
				if len(words) == 0 || !slices.Contains([]string{"cuda", "cpp", "python", "text"}, words[0]) {
					t.Fatalf("%s:%d: a fence has to say cuda, cpp, python or text", e.Name(), i+1)
				}
				open = &fragment{skill: name, line: i + 2, language: words[0], words: words[1:]}
			case isFence:
				if fence != "" {
					t.Fatalf("%s:%d: the fence of line %d was not closed", e.Name(), i+1, open.line-1)
				}
				all = append(all, *open)
				open = nil
			case open != nil:
				open.code += line + "\n"
			}
		}
		if open != nil {
			t.Fatalf("%s: the fence of line %d is not closed", e.Name(), open.line-1)
		}
	}
	return all
}

var includeLine = regexp.MustCompile(`(?m)^#include .*$`)

// together makes one translation unit of several, which compilers read in a
// fraction of the time: each in a namespace of its own, the headers once.
// Errors name the skill's own lines.
func together(all []fragment) []byte {
	var headers, body bytes.Buffer
	seen := map[string]bool{}
	for i, f := range all {
		for _, h := range includeLine.FindAllString(f.code, -1) {
			if !seen[h] {
				seen[h] = true
				fmt.Fprintln(&headers, h)
			}
		}
		fmt.Fprintf(&body, "namespace fragment_%d {\n#line %d \"skills/%s.md\"\n%s}\n", i, f.line, f.skill, includeLine.ReplaceAllString(f.code, ""))
	}
	return append(headers.Bytes(), body.Bytes()...)
}

// headerFolder has a compiler find <kw/...>.
const headerFolder = "-I../hwfeedback/harness/kwharness/build/include"

// forArchitecture says whether a fragment is for an architecture: for all,
// unless its fence names some.
func forArchitecture(f fragment, arch string) bool {
	named := slices.ContainsFunc(f.words, func(w string) bool { return strings.HasPrefix(w, "sm_") })
	return !named || slices.Contains(f.words, arch)
}

// nvcc returns the path of the compiler and skips the test where there is
// none: it is looked for in CUDA_HOME, on the path, and where "make dev" puts it.
func nvcc(t *testing.T) string {
	t.Helper()
	for _, home := range []string{os.Getenv("CUDA_HOME"), "/usr/local/cuda", "../.tools/cuda/nvidia/cu13"} {
		if home == "" {
			continue
		}
		if at, err := filepath.Abs(filepath.Join(home, "bin", "nvcc")); err == nil {
			if _, err := os.Stat(at); err == nil {
				return at
			}
		}
	}
	at, err := exec.LookPath("nvcc")
	if err != nil {
		t.Skip("there is no nvcc here (CUDA_HOME, the path, .tools/cuda): the skills' CUDA is not compiled")
	}
	return at
}

func program(t *testing.T, names ...string) string {
	t.Helper()
	for _, name := range names {
		if name == "" {
			continue
		}
		if at, err := exec.LookPath(name); err == nil {
			return at
		}
	}
	t.Skipf("there is no %s here: the skills' fragments are not compiled", strings.Join(names, " or "))
	return ""
}

func mustRun(t *testing.T, name string, args ...string) string {
	t.Helper()
	return mustRunWith(t, nil, name, args...)
}

// mustRunWith adds to the environment.
func mustRunWith(t *testing.T, environment []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(cmd.Environ(), environment...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", filepath.Base(name), err, out)
	}
	return string(out)
}

func write(t *testing.T, folder, name string, text []byte) string {
	t.Helper()
	at := filepath.Join(folder, name)
	if err := os.WriteFile(at, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return at
}

// TestFragmentsInCUDA compiles the fragments for sm_90a at once, and those
// for sm_80 as well, and each alone, when there is time.
func TestFragmentsInCUDA(t *testing.T) {
	t.Parallel()
	all := fragmentsOf(t, "cuda")
	compiler := nvcc(t)
	folder := t.TempDir()
	compile := func(t *testing.T, name, arch string, text []byte) {
		at := write(t, folder, name+".cu", text)
		number := strings.TrimPrefix(arch, "sm_")
		mustRun(t, compiler, "-c", "-std=c++17", "-Werror", "all-warnings", "-gencode=arch=compute_"+number+",code="+arch, at, "-o", at+".o")
	}
	architectures := []string{"sm_90a"}
	if soak.Long() {
		architectures = append(architectures, "sm_80")
	}
	for _, arch := range architectures {
		t.Run(arch, func(t *testing.T) {
			var here []fragment
			for _, f := range all {
				if forArchitecture(f, arch) {
					here = append(here, f)
				}
			}
			compile(t, "together", arch, together(here))
			if !soak.Long() {
				return
			}
			for i, f := range here {
				t.Run(f.String(), func(t *testing.T) { compile(t, fmt.Sprintf("alone%d", i), arch, []byte(f.code)) })
			}
		})
	}
}

// TestFragmentsOnGPU runs what the fragments define against PyTorch, where
// there is a GPU.
func TestFragmentsOnGPU(t *testing.T) {
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		t.Skip("there is no GPU here: the skills' CUDA was only compiled")
	}
	python := program(t, os.Getenv("KERNELWRIGHT_TEST_PYTHON"), "python3")
	ask := "import torch\nprint('sm_%d%d' % torch.cuda.get_device_capability() if torch.cuda.is_available() else '')"
	found, err := exec.CommandContext(t.Context(), python, "-c", ask).Output()
	arch := strings.TrimSpace(string(found))
	if err != nil || arch == "" {
		t.Skip("PyTorch finds no GPU here: the skills' CUDA was only compiled")
	}
	if arch == "sm_90" {
		arch = "sm_90a"
	}
	var here []fragment
	for _, f := range fragmentsOf(t, "cuda") {
		if forArchitecture(f, arch) {
			here = append(here, f)
		}
	}
	folder := t.TempDir()
	at := write(t, folder, "together.cu", together(here))
	library := filepath.Join(folder, "fragments.so")
	code := "-gencode=arch=compute_" + strings.TrimPrefix(arch, "sm_") + ",code=" + arch
	mustRun(t, nvcc(t), "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", code, at, "-o", library)
	if !t.Failed() {
		t.Log(mustRun(t, python, "testdata/check_cuda.py", library))
	}
}

// TestFragmentsInCPP compiles the fragments and runs what they define against
// plain code.
func TestFragmentsInCPP(t *testing.T) {
	t.Parallel()
	all := fragmentsOf(t, "cpp")
	compiler := program(t, os.Getenv("CXX"), "g++")
	folder := t.TempDir()
	flags := []string{"-O3", "-march=native", "-std=c++17", "-fopenmp", "-fno-math-errno", "-Wall", "-Werror", headerFolder}
	together := write(t, folder, "together.cpp", together(all))
	check := filepath.Join(folder, "check")
	mustRun(t, compiler, append(flags, together, "testdata/check.cpp", "-o", check)...)
	if t.Failed() {
		return
	}
	mustRun(t, check)
	for i, f := range all {
		if !soak.Long() {
			break
		}
		t.Run(f.String(), func(t *testing.T) {
			at := write(t, folder, fmt.Sprintf("alone%d.cpp", i), []byte(f.code))
			mustRun(t, compiler, append(flags, "-c", at, "-o", at+".o")...)
		})
	}
}

// TestFragmentsInPython compiles the fragments as Python, and where Triton is
// there their kernels too: to Triton's own form, or to machine code when there
// is time.
func TestFragmentsInPython(t *testing.T) {
	t.Parallel()
	python := program(t, os.Getenv("KERNELWRIGHT_TEST_PYTHON"), "python3")
	folder := t.TempDir()
	var files, kernels []string
	for i, f := range fragmentsOf(t, "python") {
		at := write(t, folder, fmt.Sprintf("%s_%d.py", f.skill, i), []byte(strings.Repeat("\n", f.line-1)+f.code))
		files = append(files, at)
		if slices.Contains(f.words, "triton") {
			kernels = append(kernels, at)
		}
	}
	kernels = append(kernels, "templates/example_triton.py")
	mustRun(t, python, append([]string{"-c", "import sys\nfor f in sys.argv[1:]: compile(open(f).read(), f, 'exec')"}, files...)...)
	if t.Failed() {
		return
	}
	if err := exec.CommandContext(t.Context(), python, "-c", "import importlib.util, sys\nsys.exit(not importlib.util.find_spec('triton'))").Run(); err != nil {
		t.Skip("Triton is not there: its kernels were only compiled as Python")
	}
	stage := "ttir"
	if soak.Long() {
		stage = "cubin"
	}
	cache := []string{"TRITON_CACHE_DIR=" + filepath.Join(folder, "cache")}
	out := mustRunWith(t, cache, python, append([]string{"testdata/compile_triton.py", stage}, kernels...)...)
	if lines := strings.Count(out, "\n"); lines < len(kernels) {
		t.Errorf("%d files have %d kernels:\n%s", len(kernels), lines, out)
	}
}
