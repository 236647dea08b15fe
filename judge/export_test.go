package judge

// Counters returns the counters of ncu that rules read.
func Counters() []string {
	all := []string{dramRead, dramWritten, dramRate, dramBusy, l2Busy, issueBusy, fmaBusy, tensorBusy, warpsActive, registersOf, wavesOf, l2Asked, l2Reads, l2Hits, localLoaded, localStored,
		conflicts, wavefronts, loadSectors, storeSectors, loadedUsed, storedUsed, limitRegisters, limitShared, limitWarps, limitBlocks}
	for _, reason := range []string{"long_scoreboard", "short_scoreboard", "barrier"} {
		all = append(all, stallShare(reason))
	}
	for _, reason := range []string{"long_scoreboard", "short_scoreboard", "barrier", "mio_throttle", "lg_throttle"} {
		all = append(all, stallRatio(reason))
	}
	return append(all, l1Parts...)
}
