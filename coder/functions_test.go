package coder

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// headerFolder is where <kw/...> lies.
const headerFolder = "../hwfeedback/harness/kwharness/build/include"

// TestFunctions holds each function of kw/math.h against the C library's
// in double precision, on one of a thousand floats, on those beside every
// constant that a function branches at, and on infinities and NaN.
func TestFunctions(t *testing.T) {
	t.Parallel()
	compiler, err := exec.LookPath(cmp.Or(os.Getenv("CXX"), "g++"))
	if err != nil {
		t.Fatal(err)
	}
	check, err := os.ReadFile("testdata/functions.cpp")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	source, program := filepath.Join(folder, "functions.cpp"), filepath.Join(folder, "functions")
	if err := os.WriteFile(source, check, 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"-O3", "-march=native", "-std=c++17", "-fno-math-errno", "-I" + headerFolder, source, "-o", program}
	if out, err := exec.CommandContext(t.Context(), compiler, flags...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program).Output()
	if err != nil {
		t.Fatal(err)
	}
	most := map[string]float64{"exp": 1, "expm1": 2, "log": 1, "log1p": 2, "tanh": 1.5, "erf": 1} // units in the last place
	for line := range strings.Lines(string(out)) {
		var name string
		var worst, at float64
		if _, err := fmt.Sscan(line, &name, &worst, &at); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if bound, ok := most[name]; !ok || worst > bound {
			t.Errorf("%s(%v) is %.3f units in the last place off, of at most %v", name, at, worst, bound)
		}
		delete(most, name)
	}
	if len(most) > 0 {
		t.Errorf("not tried: %v", most)
	}
}
