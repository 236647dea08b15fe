// Package gpu says which NVIDIA GPUs a machine has, what they are, and how they
// are just now: by the driver's management library (NVML), without touching
// CUDA.
package gpu

// GPU is one GPU as the driver describes it. Zero and empty mean unknown.
type GPU struct {
	Index       int    `json:"index"`
	Minor       int    `json:"minor"` // of its device node, /dev/nvidia0
	UUID        string `json:"uuid"`
	Name        string `json:"name"`
	PCI         string `json:"pci"` // bus address
	Driver      string `json:"driver"`
	CUDA        string `json:"cuda"`         // the newest that the driver knows, as "13.0"
	Compute     string `json:"compute"`      // compute capability, as "9.0"
	SMs         int    `json:"sms"`          // streaming multiprocessors
	MemoryBytes int64  `json:"memory_bytes"` // of the device
	BusBits     int    `json:"bus_bits"`     // width of the memory's interface
	SMClockMHz  int    `json:"sm_clock_mhz"` // the highest
	MemClockMHz int    `json:"memory_clock_mhz"`
	PowerW      int    `json:"power_limit_w"`
	MIG         bool   `json:"mig"` // split into instances
	ECC         bool   `json:"ecc"`
	State       State  `json:"state"` // by ListNow
}

// State is what changes from moment to moment.
type State struct {
	FreeBytes    int64     `json:"free_bytes"`
	Load         *float64  `json:"-"` // the share of the last moments in which a kernel ran; nil: unknown
	SMClockMHz   int       `json:"sm_clock_mhz"`
	MemClockMHz  int       `json:"memory_clock_mhz"`
	TemperatureC int       `json:"temperature_c"`
	PowerW       int       `json:"power_w"`
	Throttled    []string  `json:"throttled"`  // why its clocks are lower than they could be; idle is no reason
	ECCErrors    uint64    `json:"ecc_errors"` // uncorrected, since the driver was loaded
	Processes    []Process `json:"processes"`
}

// Process is one that has a context on a GPU.
type Process struct {
	PID   int   `json:"pid"`
	Bytes int64 `json:"bytes"` // of its memory in use
}

// TheoreticalGBs is the rate of the memory's pins, 1e9 bytes a second: nothing
// that misses the caches is faster. The clock that NVML tells is half of the
// transfers a pin makes.
func (g GPU) TheoreticalGBs() float64 {
	return 2 * float64(g.MemClockMHz) * 1e6 * float64(g.BusBits) / 8 / 1e9
}

// AbsentError says why no GPU can be used.
type AbsentError struct {
	Reason string // one sentence
	Hint   string
}

func (e *AbsentError) Error() string { return e.Reason }
