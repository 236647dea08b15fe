package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/metrics"
)

// tools are a profile's, in words.
var tools = map[string]string{"ncu": "Nsight Compute", "profiler": "PyTorch's profiler", "static": "the compiler alone"}

// Profile says what a profiler saw of a forward: a line for all of it, and one
// for each kernel, the longest first. None where nobody looked.
func Profile(p *kernelwright.Profile) []string {
	if p == nil {
		return nil
	}
	lines := []string{whole(p) + missing(p.Missing)}
	for _, k := range p.Kernels {
		lines = append(lines, kernelProfile(k))
	}
	return lines
}

// roofs are the shares of measured ceilings of a profile's position, in words.
var roofs = []struct{ name, said string }{
	{metrics.DRAMRoofShare, "memory"},
	{metrics.L2RoofShare, "L2"},
	{metrics.FP32RoofShare, "FP32"},
	{metrics.TensorRoofShare, "tensor cores"},
}

// Eager says what a profiler saw of eager, all kernels together. None where nobody
// looked.
func Eager(p *kernelwright.Profile) []string {
	if p == nil {
		return nil
	}
	return []string{"eager: " + whole(p)}
}

// whole is a line for all of a forward, with where it stands below the measured
// ceilings.
func whole(p *kernelwright.Profile) string {
	tool, known := tools[p.Tool]
	if !known {
		tool = Line(p.Tool)
	}
	said := "profile by " + tool
	if p.Launches > 0 {
		many := "es"
		if p.Launches == 1 {
			many = ""
		}
		said += fmt.Sprintf(": %d launch%s", p.Launches, many)
		if p.MS > 0 { // it is not known otherwise
			said += fmt.Sprintf(", %s on the GPU", Milliseconds(p.MS))
		}
	}
	if p.Why != "" {
		said += " (" + Line(p.Why) + ")"
	}
	var shares []string
	for _, roof := range roofs {
		if x := p.Position[roof.name]; x > 0 && !math.IsInf(x, 0) {
			shares = append(shares, roof.said+" "+Percent(x))
		}
	}
	if len(shares) > 0 {
		said += "; of the measured ceilings: " + strings.Join(shares, ", ")
	}
	return said
}

// shownMissing is how many metrics that a profile has not are named.
const shownMissing = 3

// missing names what was asked for and is not there, as a clause.
func missing(names []string) string {
	if len(names) == 0 {
		return ""
	}
	var shown []string
	for _, name := range names[:min(len(names), shownMissing)] {
		shown = append(shown, Line(name))
	}
	said := "; this GPU or this Nsight Compute has no " + strings.Join(shown, ", ")
	if more := len(names) - len(shown); more > 0 {
		said += fmt.Sprintf(" and %d more", more)
	}
	return said
}

// shownProfiles is how many kernels of a profile a report lists.
const shownProfiles = 12

// Profiles is Profile of a candidate, cut to what a report shows, with what all of
// eager is.
func Profiles(v kernelwright.Verdict) []string {
	lines := Profile(v.Profile)
	if more := len(lines) - 1 - shownProfiles; more > 0 {
		lines = append(lines[:1+shownProfiles], fmt.Sprintf("and %d more", more))
	}
	if len(lines) > 0 {
		lines = append(lines, Eager(v.EagerProfile)...)
	}
	return lines
}

func kernelProfile(k kernelwright.KernelProfile) string {
	said := Line(k.Name)
	if k.Launches > 1 {
		said += fmt.Sprintf(" × %d", k.Launches)
	}
	said += " (" + Line(k.Whose) + ")"
	var parts []string
	if k.MS > 0 {
		took := Milliseconds(k.MS)
		if k.Share > 0 { // it is not known otherwise
			took += ", " + Percent(k.Share)
		}
		parts = append(parts, took)
	}
	if k.Block[0] > 0 {
		parts = append(parts, fmt.Sprintf("%s blocks of %s threads", dimensions(k.Grid[:]), dimensions(k.Block[:])))
	}
	if more := kernelMetrics(k.Metrics); len(more) > 0 {
		parts = append(parts, strings.Join(more, ", "))
	}
	if len(parts) == 0 {
		return said
	}
	return said + ": " + strings.Join(parts, "; ")
}

// kernelMetrics are the few that matter, in words.
func kernelMetrics(m map[string]float64) (parts []string) {
	has := func(names ...string) bool {
		for _, n := range names {
			if _, ok := m[n]; !ok {
				return false
			}
		}
		return true
	}
	bytes := func(n float64) string { return ByteSize(int64(min(n, 1e18))) }
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if has(metrics.DRAMRead, metrics.DRAMWritten) {
		add("%s read and %s written", bytes(m[metrics.DRAMRead]), bytes(m[metrics.DRAMWritten]))
	}
	if has(metrics.DRAMBusy) {
		add("memory %s of its theoretical peak", Percent(m[metrics.DRAMBusy]/100))
	}
	if has(metrics.IssueBusy) {
		add("instructions issued in %s of active cycles", Percent(m[metrics.IssueBusy]/100))
	}
	if m[metrics.TensorBusy] >= 1 {
		add("tensor cores at work in %s of active cycles", Percent(m[metrics.TensorBusy]/100))
	}
	if has(metrics.WarpsActive, metrics.WarpsAllowed) {
		add("occupancy %s of %s", Percent(m[metrics.WarpsActive]/100), Percent(m[metrics.WarpsAllowed]/100))
	}
	if has(metrics.Registers) {
		add("%.0f registers", m[metrics.Registers])
	}
	if m[metrics.LoadSectors] > 0 || m[metrics.StoreSectors] > 0 {
		add("%.3g sectors a load, %.3g a store", m[metrics.LoadSectors], m[metrics.StoreSectors])
	}
	if m[metrics.BankConflicts] > 0 && m[metrics.SharedWavefronts] > 0 {
		add("bank conflicts %s of shared memory's work", Percent(min(m[metrics.BankConflicts]/m[metrics.SharedWavefronts], 1)))
	}
	if local := m[metrics.LocalLoaded] + m[metrics.LocalStored]; local > 0 {
		add("%s of local memory moved", bytes(local))
	}
	most, what := 0.0, ""
	for _, s := range metrics.Stalls {
		if x := m[metrics.StallRatio(s.Name)]; x > most {
			most, what = x, s.Said
		}
	}
	if most >= 1 {
		add("warps wait for %s", what)
	}
	return parts
}
