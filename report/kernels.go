package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// shownClasses is how many classes of instructions are named of a kernel.
const shownClasses = 4

// Kernel says what is known of a compiled kernel, in one line.
func Kernel(k kernelwright.Kernel) string {
	parts := []string{fmt.Sprintf("%d registers", k.Registers)}
	if k.Warps > 0 {
		parts = append(parts, fmt.Sprintf("%d warps", k.Warps))
	}
	if k.SharedBytes > 0 {
		parts = append(parts, ByteSize(int64(k.SharedBytes))+" shared")
	}
	if spilled := k.SpillStoreBytes + k.SpillLoadBytes; spilled > 0 {
		parts = append(parts, ByteSize(int64(spilled))+" spilled")
	} else if k.StackBytes > 0 {
		parts = append(parts, ByteSize(int64(k.StackBytes))+" of stack")
	}
	said := Line(k.Name) + " (" + Line(k.Arch) + "): " + strings.Join(parts, ", ")
	total := 0
	for _, n := range k.Instructions {
		total += n
	}
	if total == 0 {
		return said
	}
	classes := slices.SortedFunc(maps.Keys(k.Instructions), func(a, b string) int {
		return cmp.Or(cmp.Compare(k.Instructions[b], k.Instructions[a]), cmp.Compare(a, b))
	})
	var mix []string
	for _, c := range classes[:min(len(classes), shownClasses)] {
		mix = append(mix, strings.ReplaceAll(Line(c), "_", " ")+" "+Percent(float64(k.Instructions[c])/float64(total)))
	}
	said += fmt.Sprintf("; %d instructions: %s", total, strings.Join(mix, ", "))
	var moved []string
	for _, m := range []struct {
		what  string
		bytes float64
	}{{"load", k.LoadBytes}, {"store", k.StoreBytes}} {
		if m.bytes > 0 {
			moved = append(moved, fmt.Sprintf("%.3g bytes a global %s", m.bytes, m.what))
		}
	}
	if len(moved) > 0 {
		said += "; " + strings.Join(moved, ", ")
	}
	return said
}

// Launches says what a forward has a GPU do, a line for each kind, the longest
// first.
func Launches(launches []kernelwright.Launch) []string {
	total := 0.0
	for _, l := range launches {
		total += l.MS
	}
	var lines []string
	for _, l := range launches {
		said := Line(l.Name)
		if l.Count > 1 {
			said += fmt.Sprintf(" × %d", l.Count)
		}
		said += ": " + Milliseconds(l.MS)
		if total > 0 {
			said += ", " + Percent(l.MS/total)
		}
		if len(l.Grid) > 0 && len(l.Block) > 0 {
			said += fmt.Sprintf(", %s blocks of %s threads", dimensions(l.Grid), dimensions(l.Block))
		}
		lines = append(lines, said)
	}
	return lines
}

// dimensions writes [64 2 1] as "64 × 2".
func dimensions(sizes []int) string {
	for len(sizes) > 1 && sizes[len(sizes)-1] == 1 {
		sizes = sizes[:len(sizes)-1]
	}
	return strings.Join(strings.Fields(strings.Trim(fmt.Sprint(sizes), "[]")), " × ")
}
