package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/report"
)

func certificateAt(t *testing.T, base string) report.Certificate {
	t.Helper()
	text, err := os.ReadFile(base + ".certificate.json")
	if err != nil {
		t.Fatal(err)
	}
	var c report.Certificate
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func wrote(t *testing.T, r Results, path string, d report.Data) Written {
	t.Helper()
	w, err := r.Write(path, d)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A kernel that is slower by its whole interval has its certificate and reports, and
// no file.
func TestNothingSlowerIsHandedOut(t *testing.T) {
	b := newBench(t)
	b.start(nil)
	base := strings.TrimSuffix(b.drop("norm.py", "norm, slower"), ".py")
	done := b.next()
	s := done.Summary()
	if done.WriteErr != nil || s.Result != report.NothingFaster || s.Status != "certified" || s.Kernel != "" || s.Round < 0 || s.Report == "" {
		t.Fatalf("%+v, %v", s, done.WriteErr)
	}
	if _, err := os.Stat(base + ".best.py"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was written: %v", err)
	}
	c := certificateAt(t, base)
	if c.File != "" || c.Result != report.NothingFaster || c.SHA256 == "" || !strings.HasPrefix(c.Says, "Nothing faster than compile was found") {
		t.Errorf("%+v", c)
	}
	if c.Issued == "" || c.Run != done.Data.Run.ID {
		t.Errorf("issued %q, run %d", c.Issued, c.Run)
	}
	for _, suffix := range []string{".report.md", ".report.html"} {
		if text := b.read(base + suffix); !strings.Contains(text, "not handed out") || !strings.Contains(text, "kernelwright export") {
			t.Errorf("%s does not say so", suffix)
		}
	}
	b.logged("result=nothing_faster")
	// The same content elsewhere gets the same.
	other := strings.TrimSuffix(b.drop("again.py", "norm, slower"), ".py")
	b.logged("again.py")
	if _, err := os.Stat(other + ".best.py"); err == nil {
		t.Error("another file got it")
	}
}

// What becomes of an older kernel where a run found nothing faster.
func TestAnOlderKernel(t *testing.T) {
	const reference = "class Model: pass\n"
	data := func(source string, run int64, value float64) report.Data {
		v := kernelwright.Verdict{
			Status: kernelwright.Certified, Level: kernelwright.Certify, CandidateMS: 2, Baselines: map[string]float64{"eager": 2 * value},
			Speedup: &kernelwright.Speedup{Value: value, Low: value * 0.98, High: value * 1.02, Against: "eager"}, Exported: fmt.Sprintf("# of run %d\n%s", run, source),
		}
		v.ExportedSHA256 = kernelwright.HashText(v.Exported)
		return report.Data{
			Run: kernelwright.Run{ID: run, TaskName: "norm", Status: kernelwright.RunDone}, Task: kernelwright.Task{Source: source},
			Rounds: []kernelwright.Round{{RunID: run, Verdict: v, Certificate: &v, CertifiedMS: 1_790_000_000_000}},
		}
	}
	for name, tt := range map[string]struct {
		older  func(t *testing.T, r Results, path string) // what is there before
		kernel bool                                       // stays
		run    int64                                      // of the certificate afterwards
		says   string
	}{
		"none": {func(*testing.T, Results, string) {}, false, 2, ""},
		"faster": {func(t *testing.T, r Results, path string) {
			wrote(t, r, path, data(reference, 1, 1.5))
		}, true, 1, "norm.best.py of run 1 stays, with its certificate: 2.00 ms, 1.50× [1.47, 1.53] against eager"},
		"no difference": {func(t *testing.T, r Results, path string) {
			wrote(t, r, path, data(reference, 1, 1.01))
		}, true, 1, "norm.best.py of run 1 stays, with its certificate: "},
		"of another text": {func(t *testing.T, r Results, path string) {
			wrote(t, r, path, data("# edited\n"+reference, 1, 1.5))
		}, false, 2, "norm.best.py of run 1 was of another text of the reference and was removed; `kernelwright export 1 --round 0 --out PATH` writes it"},
		"slower, of an earlier version": {func(t *testing.T, r Results, path string) {
			base := strings.TrimSuffix(path, ".py")
			wrote(t, r, path, data(reference, 1, 0.8))
			if err := os.WriteFile(base+".best.py", []byte("# of run 1\n"+reference), 0o600); err != nil {
				t.Fatal(err)
			}
		}, false, 2, "norm.best.py of run 1 was slower than eager, too, and was removed; "},
		"edited by hand": {func(t *testing.T, r Results, path string) {
			wrote(t, r, path, data(reference, 1, 1.5))
			if err := os.WriteFile(strings.TrimSuffix(path, ".py")+".best.py", []byte("# mine\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, true, 2, "norm.best.py was there before and is no certified file: it stays as it is"},
		"without a certificate": {func(t *testing.T, _ Results, path string) {
			if err := os.WriteFile(strings.TrimSuffix(path, ".py")+".best.py", []byte("# mine\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, true, 2, "norm.best.py was there before and is no certified file: it stays as it is"},
		"beside a broken certificate": {func(t *testing.T, r Results, path string) {
			base := strings.TrimSuffix(path, ".py")
			wrote(t, r, path, data(reference, 1, 1.5))
			if err := os.WriteFile(base+".certificate.json", []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, true, 2, "norm.best.py was there before and is no certified file: it stays as it is"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "norm.py")
			base := strings.TrimSuffix(path, ".py")
			r := Results{Markdown: true, HTML: true}
			tt.older(t, r, path)
			before, _ := os.ReadFile(base + ".best.py")
			for range 2 { // written again, as after a crash
				written := wrote(t, r, path, data(reference, 2, 0.9))
				if written.Kernel != "" || written.Markdown == "" || written.HTML == "" {
					t.Errorf("%+v", written)
				}
				after, err := os.ReadFile(base + ".best.py")
				if tt.kernel != (err == nil) || tt.kernel && string(after) != string(before) {
					t.Errorf("the kernel's file afterwards: %q, %v", after, err)
				}
				c := certificateAt(t, base)
				if c.Run != tt.run || c.Run == 2 && (c.File != "" || c.Result != report.NothingFaster) {
					t.Errorf("the certificate afterwards: run %d, file %q, %s", c.Run, c.File, c.Result)
				}
				if written.Certificate != "" != (tt.run == 2) {
					t.Errorf("%+v", written)
				}
			}
			again := data(reference, 2, 0.9)
			if tt.says == "" {
				return
			}
			if err := errors.Join(os.RemoveAll(filepath.Dir(path)), os.Mkdir(filepath.Dir(path), 0o700)); err != nil {
				t.Fatal(err)
			}
			tt.older(t, r, path)
			written := wrote(t, r, path, again)
			if !strings.HasPrefix(written.Older, tt.says) {
				t.Errorf("it says %q", written.Older)
			}
			if text, err := os.ReadFile(written.HTML); err != nil || !strings.Contains(string(text), "norm.best.py") {
				t.Errorf("the report does not say so: %v", err)
			}
			if s := (Done{Data: again, Written: written}).Summary(); len(s.Notes) != 2 || s.Notes[1] != written.Older {
				t.Errorf("notes: %q", s.Notes)
			}
		})
	}
	// A faster kernel takes the place of whatever was there.
	path := filepath.Join(t.TempDir(), "norm.py")
	r := Results{}
	wrote(t, r, path, data(reference, 1, 1.2))
	wrote(t, r, path, data("# edited\n"+reference, 2, 1.1))
	if c := certificateAt(t, strings.TrimSuffix(path, ".py")); c.Run != 2 || c.File != "norm.best.py" || c.Result != report.Faster {
		t.Errorf("%+v", c)
	}
}
