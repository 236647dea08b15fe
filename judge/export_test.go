package judge

import "github.com/kernelwright/kernelwright/metrics"

// Counters returns the counters of ncu that rules read.
func Counters() []string {
	all := []string{metrics.DRAMRead, metrics.DRAMWritten, metrics.DRAMRate, metrics.DRAMBusy, metrics.L2Busy, metrics.IssueBusy, metrics.FMABusy, metrics.TensorBusy, metrics.WarpsActive, metrics.Registers, metrics.Waves, metrics.L2Sectors, metrics.L2SectorsRead, metrics.L2Hits, metrics.LocalLoaded, metrics.LocalStored,
		metrics.BankConflicts, metrics.SharedWavefronts, metrics.LoadSectors, metrics.StoreSectors, metrics.LoadedUsed, metrics.StoredUsed, metrics.LimitRegisters, metrics.LimitShared, metrics.LimitWarps, metrics.LimitBlocks}
	for _, reason := range []string{"long_scoreboard", "short_scoreboard", "barrier"} {
		all = append(all, metrics.StallShare(reason))
	}
	for _, reason := range []string{"long_scoreboard", "short_scoreboard", "barrier", "mio_throttle", "lg_throttle"} {
		all = append(all, metrics.StallRatio(reason))
	}
	return append(all, l1Parts...)
}
