package report

import (
	"fmt"
	"slices"

	"github.com/kernelwright/kernelwright"
)

// The drawing of a tree of rounds, in its own units.
const (
	treeRow    = 34.0
	treeColumn = 132.0
	treeMargin = 18.0
)

// roundTree has the rounds of a run by what each went on from, placed: a column for each
// step from a first candidate, and a row for each candidate that nothing went on from.
type roundTree struct {
	Width, Height float64
	Edges         []string // paths
	Nodes         []treeNode
	Text          string
}

type treeNode struct {
	X, Y         float64
	Round        int
	Link         string
	Class, Label string
	Said         string
}

// newTree places the rounds; false where each goes on from the one before, which the
// chart of rounds shows as well.
func newTree(rounds []kernelwright.Round, kept int, link func(int) string) (t roundTree, ok bool) {
	at, children := map[int]int{}, map[int][]int{}
	var roots []int
	branches := false
	for i, r := range rounds {
		at[r.Index] = i
		after := r.After()
		if _, there := at[after]; !there || after == r.Index {
			after = -1
		}
		branches = branches || i > 0 && after != rounds[i-1].Index
		if after < 0 {
			roots = append(roots, i)
		} else {
			children[at[after]] = append(children[at[after]], i)
		}
	}
	if !branches {
		return t, false
	}
	rows, depth := 0, 0
	place := make([]treeNode, len(rounds))
	var put func(i, level int) float64
	put = func(i, level int) float64 {
		depth = max(depth, level)
		var ys []float64
		for _, c := range children[i] {
			ys = append(ys, put(c, level+1))
		}
		y := treeMargin + float64(rows)*treeRow
		if len(ys) == 0 {
			rows++
		} else {
			y = ys[0]
		}
		r := rounds[i]
		v := Counts(r)
		n := treeNode{X: treeMargin + float64(level)*treeColumn, Y: y, Round: r.Index, Link: link(r.Index), Class: statusClass(v.Status), Label: fmt.Sprintf("%d  %s", r.Index, RoundStanding(r))}
		if refused(r) {
			n.Class = "failed"
		}
		if v.Speedup != nil && v.Status.OK() {
			n.Label = fmt.Sprintf("%d  %s", r.Index, times(v.Speedup.Value))
		}
		if r.Index == kept {
			n.Class += " kept"
		}
		n.Said = fmt.Sprintf("round %d: %s", r.Index, RoundStanding(r))
		if m := Measured(v); m != "" {
			n.Said += ", " + m
		}
		place[i] = n
		return y
	}
	for _, i := range roots {
		put(i, 0)
	}
	for parent, all := range children {
		for _, c := range all {
			a, b := place[parent], place[c]
			t.Edges = append(t.Edges, fmt.Sprintf("M%g %gC%g %g %g %g %g %g", a.X, a.Y, a.X+treeColumn/2, a.Y, b.X-treeColumn/2, b.Y, b.X, b.Y))
		}
	}
	slices.Sort(t.Edges)
	t.Nodes = place
	t.Width, t.Height = 2*treeMargin+float64(depth)*treeColumn+110, 2*treeMargin+float64(max(rows-1, 0))*treeRow
	t.Text = fmt.Sprintf("Which round went on from which: %d rounds, %d first candidates", len(rounds), len(roots))
	return t, true
}
