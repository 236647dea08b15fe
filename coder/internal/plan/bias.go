package plan

import (
	"slices"
	"strconv"
)

// convolutions take their bias as the third argument.
var convolutions = []string{"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}

// Unbiased takes the bias out of convolutions whose result goes into kernels
// alone. On a GPU torch adds it in a kernel of its own, which reads and writes all
// of the result once more; of a matrix product the library adds it by itself.
func Unbiased(g *Graph) *Graph {
	out := *g
	out.Nodes = nil
	for _, n := range g.Nodes {
		if !slices.Contains(convolutions, opName(n.Op)) || len(n.Args) < 3 || n.Args[2].Kind != argRef || len(n.Outputs) != 1 || !g.onlyLowered(n.Name) {
			out.Nodes = append(out.Nodes, n)
			continue
		}
		o := n.Outputs[0]
		i := slices.IndexFunc(g.Parameters, func(p GraphTensor) bool { return p.Name == n.Args[2].S })
		channels := len(o.Shape) - 1 - (weightRank(n.Op) - 2)
		if i < 0 || channels < 0 || g.Parameters[i].DType != o.DType || !slices.Equal(g.Parameters[i].Shape, o.Shape[channels:channels+1]) {
			out.Nodes = append(out.Nodes, n)
			continue
		}
		product := n
		product.Name += "_product"
		product.Args = slices.Clone(n.Args)
		product.Args[2] = Arg{}
		shape := append([]int{o.Shape[channels]}, slices.Repeat([]int{1}, len(o.Shape)-1-channels)...)
		sizes := Arg{Kind: argList}
		for _, s := range shape {
			sizes.List = append(sizes.List, Arg{Kind: argInt, Int: int64(s), F: float64(s)})
		}
		meta := TensorMeta{Shape: shape, DType: o.DType, Strides: Contiguous(shape)}
		bias := GraphNode{Name: n.Name + "_bias", Op: "aten.view.default", Args: []Arg{n.Args[2], sizes}, Outputs: []TensorMeta{meta}}
		sum := GraphNode{Name: n.Name, Op: "aten.add.Tensor", Outputs: n.Outputs,
			Args: []Arg{{Kind: argRef, S: product.Name, Item: -1}, {Kind: argRef, S: bias.Name, Item: -1}}}
		out.Nodes = append(out.Nodes, product, bias, sum)
	}
	return &out
}

// weightRank is the rank of a convolution's weight.
func weightRank(op string) int {
	name := opName(op)
	d, _ := strconv.Atoi(name[len(name)-2 : len(name)-1])
	return d + 2
}

// onlyLowered reports whether all that takes a node's result can be part of a
// kernel.
func (g *Graph) onlyLowered(name string) bool {
	only, taken := true, false
	for _, n := range g.Nodes {
		n.refs(func(a Arg) {
			if a.S == name {
				taken = true
				only = only && lowerers[opName(n.Op)] != nil
			}
		})
	}
	_ = g.Outputs.leaves(func(a Arg) error {
		only = only && (a.Kind != argRef || a.S != name)
		return nil
	})
	return only && taken
}
