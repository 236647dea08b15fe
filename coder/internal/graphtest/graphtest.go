// Package graphtest has the captured graphs that the tests of the Coder share: those of
// coder/testdata/graphs.jsonl, which testdata/generate.py captures.
package graphtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/kernelwright/kernelwright"
)

// Graph is the captured graph of one module.
type Graph struct {
	Name  string          `json:"name"`
	Graph json.RawMessage `json:"graph"` // null where it could not be captured
	Note  string          `json:"note"`  // why
}

// CPU is a device with two cores and the widest vectors.
var CPU = kernelwright.Device{Specs: kernelwright.Specs{Cores: 2, Threads: 2, VectorBits: 512}}

// GPU is one with a few multiprocessors.
var GPU = kernelwright.Device{Kind: kernelwright.CUDADevice, Specs: kernelwright.Specs{Cores: 6, L2Bytes: 64 << 10}}

// Read reads graphs, one a line.
func Read(t testing.TB, b []byte) []Graph {
	t.Helper()
	var out []Graph
	s := bufio.NewScanner(bytes.NewReader(b))
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		var g Graph
		if err := json.Unmarshal(s.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		out = append(out, g)
	}
	return out
}

// File reads the graphs of a file, by their names.
func File(t testing.TB, path string) map[string]Graph {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]Graph{}
	for _, g := range Read(t, b) {
		out[g.Name] = g
	}
	return out
}

// Resized is the graph of a module over 33 x 129 as if its tensors were of another size.
func (g Graph) Resized(rows, columns int) []byte {
	text := g.Graph
	for was, is := range map[string]int{"33": rows, "129": columns} {
		text = regexp.MustCompile(`\b`+was+`\b`).ReplaceAll(text, []byte(strconv.Itoa(is)))
	}
	return text
}
