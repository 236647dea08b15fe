package kernelwright

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Language is what a candidate is written in.
type Language string

// The languages a candidate can be written in.
const (
	CUDA   Language = "cuda"
	Triton Language = "triton"
	CPP    Language = "cpp"
)

// Languages have one row each. Prompts and skills are files by a language's name, and
// docs/code-map.md lists what else there is of one. The first row of a kind of device is the language of
// candidates there where nobody says which.
var Languages = []LanguageRow{
	{Name: CUDA, Title: "CUDA", Device: CUDADevice, Fence: "cuda", Builtin: true},
	{Name: Triton, Title: "Triton", Device: CUDADevice, Fence: "python", Module: "triton"},
	{Name: CPP, Title: "C++", Device: CPUDevice, Fence: "cpp", Builtin: true},
}

// LanguageRow is what is known of a language.
type LanguageRow struct {
	Name   Language
	Title  string     // in sentences
	Device DeviceKind // that candidates in it run on
	Fence  string     // of its code in Markdown
	// Module is whose import in a candidate's text tells of it: it compiles when
	// it is called. Empty: calls of native and load_inline tell.
	Module  string
	Builtin bool // the built-in Coder writes it
}

// LanguagesOn returns those of a GPU, or those of a CPU.
func LanguagesOn(kind DeviceKind) (names []Language) {
	for _, row := range Languages {
		if (row.Device == CUDADevice) == (kind == CUDADevice) {
			names = append(names, row.Name)
		}
	}
	return names
}

// AllLanguages returns the names of all.
func AllLanguages() []Language {
	return slices.Concat(LanguagesOn(CPUDevice), LanguagesOn(CUDADevice))
}

// LanguageNames returns the names of languages.
func LanguageNames(languages []Language) (names []string) {
	for _, l := range languages {
		names = append(names, string(l))
	}
	return names
}

// Known reports whether it is one of Languages.
func (l Language) Known() bool { return slices.Contains(AllLanguages(), l) }

// Row returns the language's row, a blank one where there is none.
func (l Language) Row() LanguageRow {
	for _, row := range Languages {
		if row.Name == l {
			return row
		}
	}
	return LanguageRow{Name: l, Title: string(l)}
}

// RunsOn reports whether candidates in it run on a kind of device.
func (l Language) RunsOn(kind DeviceKind) bool { return slices.Contains(LanguagesOn(kind), l) }

// Candidate is source that defines ModelNew.
type Candidate struct {
	Source   string   `json:"source"`
	Language Language `json:"language"`
	// Origin says who wrote it: "builtin", "provider:model", or "file".
	Origin string `json:"origin,omitempty"`
	// Note is one sentence by the Coder on what it tried.
	Note string `json:"note,omitempty"`
}

// NamedBaseline is a program that somebody has registered as a baseline of a
// task, such as an expert's kernel. It is written as a candidate is.
type NamedBaseline struct {
	Name     string   `json:"name"`
	Source   string   `json:"source"`
	Language Language `json:"language"`
}

// DeviceKind is what a candidate runs on.
type DeviceKind string

// The kinds of device.
const (
	CPUDevice  DeviceKind = "cpu"
	CUDADevice DeviceKind = "cuda"
)

// Device is one place where candidates run, with its specs and its measured
// ceilings. Verdicts of different devices are never mixed.
type Device struct {
	Kind  DeviceKind `json:"kind"`
	Index int        `json:"index"`
	Key   string     `json:"key"` // identifies hardware, driver and versions; part of every cache key
	// Class is the same for devices that one table may be of: GPUs of one model
	// under one branch of the driver, with one PyTorch.
	Class    string   `json:"class,omitempty"`
	Name     string   `json:"name"`
	Specs    Specs    `json:"specs" unknown:"0"`
	Ceilings Ceilings `json:"ceilings" unknown:"0"`
}

// String returns the name used on the command line: "cpu", "cuda:0".
func (d Device) String() string {
	if d.Kind == CPUDevice {
		return string(d.Kind)
	}
	return fmt.Sprintf("%s:%d", d.Kind, d.Index)
}

// Specs is what a device is said to be. Zero means unknown.
type Specs struct {
	Model       string   `json:"model"`
	Cores       int      `json:"cores" unknown:"0"` // physical cores, or SMs
	Threads     int      `json:"threads" unknown:"0"`
	ISA         []string `json:"isa,omitempty"` // "avx2", "avx512f", or "sm_90a"
	VectorBits  int      `json:"vector_bits,omitempty" unknown:"0"`
	L1Bytes     int64    `json:"l1_bytes,omitempty" unknown:"0"` // data cache of one core
	L2Bytes     int64    `json:"l2_bytes,omitempty" unknown:"0"` // of one core on a CPU, of the device on a GPU
	L3Bytes     int64    `json:"l3_bytes,omitempty" unknown:"0"`
	MemoryBytes int64    `json:"memory_bytes" unknown:"0"`
	ClockMHz    float64  `json:"clock_mhz,omitempty" unknown:"0"`
	MemoryGBs   float64  `json:"memory_gbs,omitempty" unknown:"0"` // 1e9 bytes/s that the memory's pins can move, of a GPU
	SM          *SM      `json:"sm,omitempty"`                     // of a GPU, nil where nothing is known
}

// SM is what one streaming multiprocessor of a GPU holds at most, and computes.
// Rates are fused multiply-adds a clock, dense.
type SM struct {
	Threads       int            `json:"threads" unknown:"0"` // resident, as the warps and blocks
	Warps         int            `json:"warps"`
	Blocks        int            `json:"blocks"`
	Registers     int            `json:"registers"` // of 32 bits
	SharedBytes   int64          `json:"shared_bytes"`
	SharedOfBlock int64          `json:"shared_of_block"` // of a block, when it asks for it
	FP32          int            `json:"fp32"`
	FP64          int            `json:"fp64"`
	Tensor        map[string]int `json:"tensor,omitempty"` // by type of operand, of the tensor cores
}

// Limits says what it holds at most, in part of a sentence.
func (m SM) Limits() string {
	return fmt.Sprintf("%d threads in %d warps, %d blocks, %d registers, %d KiB of shared memory (a block %d KiB)",
		m.Threads, m.Warps, m.Blocks, m.Registers, m.SharedBytes>>10, m.SharedOfBlock>>10)
}

// Rates says what it computes, in part of a sentence.
func (m SM) Rates() string {
	said := fmt.Sprintf("float32 %d, float64 %d", m.FP32, m.FP64)
	var tensor []string
	for _, name := range slices.Sorted(maps.Keys(m.Tensor)) {
		tensor = append(tensor, fmt.Sprintf("%s %d", name, m.Tensor[name]))
	}
	if len(tensor) > 0 {
		said += "; tensor cores " + strings.Join(tensor, ", ")
	}
	return said
}

// Ceilings is what the device was measured to reach, kept per machine.
type Ceilings struct {
	MemoryGBs   float64 `json:"memory_gbs" unknown:"0"`  // 1e9 bytes/s, read plus write, streaming, all threads
	CacheGBs    float64 `json:"cache_gbs" unknown:"0"`   // the same within half the last-level cache
	FP32GFLOPs  float64 `json:"fp32_gflops" unknown:"0"` // peak fused multiply-adds, counted as two, all threads
	CallUS      float64 `json:"call_us" unknown:"0"`     // an empty native call; an empty kernel after another, on a GPU
	MeasuredMS  int64   `json:"measured_at" time:"ms"`   // Unix milliseconds
	CPUThreads  int     `json:"threads" unknown:"0"`     // threads they were measured with
	Description string  `json:"note,omitempty"`          // how, in one sentence

	// Of a GPU: bytes read alone, and matrix products by type of operand.
	ReadGBs      float64            `json:"read_gbs,omitempty" unknown:"0"`
	TensorGFLOPs map[string]float64 `json:"tensor_gflops,omitempty"`
}

// MixedGBs returns the rate, in 1e9 bytes/s, at which memory moves so many bytes
// read and so many written: as in a copy, but what is read beyond what is written
// as in reading alone, for then memory need not turn round. 0 where nothing was
// measured.
func (c Ceilings) MixedGBs(read, written float64) float64 {
	alone := read - written
	if c.MemoryGBs <= 0 || !(alone > 0) || c.ReadGBs <= c.MemoryGBs {
		return c.MemoryGBs
	}
	return (read + written) / (alone/c.ReadGBs + 2*written/c.MemoryGBs)
}
