package prompts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// Bounds of a brief.
const (
	maxNodes      = 48
	maxBriefBytes = 2 << 10
)

// Brief is what a compact prompt says of a task beside its reference, and of the
// device: each in a line or two, and the reference's graph, a line an operator.
func Brief(t kernelwright.Task, d kernelwright.Device) Data {
	var f facts
	s, c := d.Specs, d.Ceilings
	name := s.Model
	if name == "" {
		name = d.Name
	}
	var parts []string
	part := func(ok bool, format string, args ...any) {
		if ok {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	cuda := d.Kind == kernelwright.CUDADevice
	part(d.Kind != "", "%s: %s", d, Line(name, maxWord))
	part(s.Cores > 0 && cuda, "%d SMs", s.Cores)
	part(len(s.ISA) > 0, "%s", Line(strings.Join(s.ISA, " "), maxWord))
	part(c.CPUThreads > 0 && !cuda, "%d threads", c.CPUThreads)
	part(s.VectorBits > 0 && !cuda, "vectors of %d bits", s.VectorBits)
	part(c.MemoryGBs > 0, "%s GB/s", number(c.MemoryGBs))
	part(c.FP32GFLOPs > 0, "float32 %s GFLOP/s", number(c.FP32GFLOPs))
	if len(parts) > 0 {
		f.add("%s", strings.Join(parts, ", "))
	}
	if t.EagerMS > 0 {
		f.add("eager takes about %.4g ms", t.EagerMS)
	}
	f.b.WriteString(graphLines(t))
	return Fence("device and graph", f.b.String(), maxBriefBytes)
}

// graphLines are the tensors that go in, and the operators, as they follow each other.
func graphLines(t kernelwright.Task) string {
	var f facts
	tensors := func(list []kernelwright.TensorSpec) {
		for _, s := range list[:min(len(list), maxListed)] {
			f.add("%s: %s %s", Line(s.Name, maxWord), Line(s.DType, maxWord), shape(s.Shape))
		}
	}
	tensors(t.Inputs)
	tensors(t.Parameters)
	var graph struct {
		Nodes []struct {
			Name   string                     `json:"name"`
			Op     string                     `json:"op"`
			Args   []json.RawMessage          `json:"args"`
			Kwargs map[string]json.RawMessage `json:"kwargs"`
		} `json:"nodes"`
	}
	if len(t.Graph) == 0 || json.Unmarshal(t.Graph, &graph) != nil || len(graph.Nodes) == 0 {
		var all []string
		for _, o := range t.Operators[:min(len(t.Operators), maxOperators)] {
			all = append(all, Line(o, maxWord))
		}
		if len(all) > 0 {
			f.add("operators: %s", strings.Join(all, ", "))
		}
		tensors(t.Outputs)
		return f.b.String()
	}
	for i, n := range graph.Nodes {
		if i == maxNodes {
			f.add("and %d more operators", len(graph.Nodes)-i)
			break
		}
		var args []string
		for _, a := range n.Args {
			args = append(args, argument(a))
		}
		for _, k := range slices.Sorted(maps.Keys(n.Kwargs)) {
			args = append(args, k+"="+argument(n.Kwargs[k]))
		}
		f.add("%s", Line(fmt.Sprintf("%s = %s(%s)", n.Name, strings.TrimPrefix(n.Op, "aten."), strings.Join(args, ", ")), maxSentence))
	}
	return f.b.String()
}

// argument writes one of a node's as people would.
func argument(raw json.RawMessage) string {
	raw = bytes.TrimSpace(raw)
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil && len(raw) > 0 && raw[0] == '[' {
		all := make([]string, len(list))
		for i, a := range list {
			all[i] = argument(a)
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	var o map[string]any
	if json.Unmarshal(raw, &o) == nil && o != nil {
		if ref, ok := o["ref"].(string); ok {
			if item, ok := o["item"].(float64); ok && item > 0 {
				return fmt.Sprintf("%s[%.0f]", ref, item)
			}
			return ref
		}
		for _, key := range []string{"dtype", "float", "torch", "device"} {
			if s, ok := o[key].(string); ok {
				return s
			}
		}
	}
	if string(raw) == "null" {
		return "None"
	}
	return string(raw)
}
