package report

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright"
)

func TestWhatDidTheWork(t *testing.T) {
	for _, tt := range []struct {
		name   string
		work   kernelwright.WorkReport
		want   string
		others bool // own kernels took less than half of the time
	}{
		{"nothing is known", kernelwright.WorkReport{}, "", false},
		{"own kernels", kernelwright.WorkReport{Custom: 0.997, PyTorch: 0.003}, "100 % own kernels", false},
		{"the largest first", kernelwright.WorkReport{Custom: 0.62, PyTorch: 0.08, Vendor: 0.3}, "62 % own kernels, 30 % vendors' libraries, 8 % PyTorch's operators", false},
		{"a rewrite", kernelwright.WorkReport{PyTorch: 1}, "100 % PyTorch's operators", true},
		{"a compiler", kernelwright.WorkReport{Compiled: 0.9, Vendor: 0.1}, "90 % compiled by inductor, 10 % vendors' libraries", true},
		{"a graph", kernelwright.WorkReport{Graph: 0.98, PyTorch: 0.02}, "98 % replayed by a CUDA graph, 2 % PyTorch's operators", true},
	} {
		if got := Work(tt.work); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if got := OthersWork(tt.work); (got != "") != tt.others {
			t.Errorf("%s: a table says %q", tt.name, got)
		}
	}
}

// A kernel that is not own code for the most part is one in table, reports and certificate.
func TestWhatDidTheWorkIsSaidEverywhere(t *testing.T) {
	d := finished()
	i := len(d.Rounds) - 1
	for i >= 0 && d.Rounds[i].Certificate == nil {
		i--
	}
	d.Rounds[i].Certificate.Work = kernelwright.WorkReport{Compiled: 0.9, PyTorch: 0.1}
	const said = "90 % compiled by inductor, 10 % PyTorch's operators"
	var table bytes.Buffer
	if err := Table(&table, []Summary{Summarise(d)}); err != nil {
		t.Fatal(err)
	}
	var markdown, html bytes.Buffer
	if err := Markdown(&markdown, d); err != nil {
		t.Fatal(err)
	}
	if err := HTML(&html, d); err != nil {
		t.Fatal(err)
	}
	b, _, ok, err := Certify(d, "softmax.best.py")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	var c Certificate
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	plain := strings.ReplaceAll(html.String(), "&#39;", "'")
	for where, text := range map[string]string{"table": table.String(), "Markdown": markdown.String(), "HTML": plain, "certificate": c.Work} {
		if !strings.Contains(text, said) {
			t.Errorf("the %s does not say what did the work", where)
		}
	}
}
