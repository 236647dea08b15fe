package judge

// Counters returns the counters of ncu that rules read, by all their names.
func Counters() []string {
	all := []string{dramRead, dramWritten, dramRate, dramBusy, "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", l2Busy, l1Busy, issueBusy, fp32Busy, fmaBusy, tensorBusy, warpsActive, stallsAll,
		registersOf, wavesOf, conflicts, wavefronts, localLoads, "l1tex__t_bytes.sum", loadSectors, storeSectors, limitRegisters, limitShared, limitWarps, limitBlocks,
		"smsp__warp_issue_stalled_memory_dependency_per_warp_active.pct"}
	for _, reason := range []string{"long_scoreboard", "short_scoreboard", "barrier", "mio_throttle", "lg_throttle"} {
		all = append(all, stallName(reason), "smsp__warp_issue_stalled_"+reason+"_per_warp_active.pct")
	}
	return all
}
