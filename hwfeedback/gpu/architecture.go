package gpu

// Architecture is what NVML does not tell and every GPU of one compute
// capability has. Rates are fused multiply-adds a clock and multiprocessor, dense;
// an operation count is twice that.
//
// Sources: CUDA C++ Programming Guide 13.0, "Compute Capabilities" (limits) and
// "Arithmetic Instructions" (FP32, FP64); for the tensor cores NVIDIA's
// architecture papers of Volta (2017), Turing (2018), Ampere GA100 (2020) and
// GA102 (2021), Ada (2022), Hopper H100 (2022) and Blackwell (2024, 2025), as
// the peak rate of a product over its multiprocessors and boost clock.
type Architecture struct {
	Name          string
	FP32, FP64    int
	Tensor        map[string]int // by type of operand
	Warps         int            // resident, most
	Blocks        int            // resident, most
	Registers     int            // 32-bit
	SharedBytes   int            // of a multiprocessor
	SharedOfBlock int            // of a block, when it asks for it
}

var architectures = map[string]Architecture{
	"7.0":  {"Volta", 64, 32, map[string]int{"float16": 512}, 64, 32, 65536, 96 << 10, 96 << 10},
	"7.5":  {"Turing", 64, 2, map[string]int{"float16": 512, "int8": 1024}, 32, 16, 65536, 64 << 10, 64 << 10},
	"8.0":  {"Ampere", 64, 32, map[string]int{"tf32": 512, "float16": 1024, "bfloat16": 1024, "int8": 2048, "float64": 64}, 64, 32, 65536, 164 << 10, 163 << 10},
	"8.6":  {"Ampere", 128, 2, map[string]int{"tf32": 256, "float16": 512, "bfloat16": 512, "int8": 1024}, 48, 16, 65536, 100 << 10, 99 << 10},
	"8.9":  {"Ada", 128, 2, map[string]int{"tf32": 256, "float16": 512, "bfloat16": 512, "float8": 1024, "int8": 1024}, 48, 24, 65536, 100 << 10, 99 << 10},
	"9.0":  {"Hopper", 128, 64, map[string]int{"tf32": 1024, "float16": 2048, "bfloat16": 2048, "float8": 4096, "int8": 4096, "float64": 128}, 64, 32, 65536, 228 << 10, 227 << 10},
	"10.0": {"Blackwell", 128, 64, map[string]int{"tf32": 2048, "float16": 4096, "bfloat16": 4096, "float8": 8192, "float4": 16384}, 64, 32, 65536, 228 << 10, 227 << 10},
	"12.0": {"Blackwell", 128, 2, map[string]int{"tf32": 256, "float16": 512, "bfloat16": 512, "float8": 1024, "int8": 1024, "float4": 2048}, 48, 24, 65536, 100 << 10, 99 << 10},
}

// ArchitectureOf returns what is known of a compute capability, as "9.0".
func ArchitectureOf(compute string) (Architecture, bool) {
	a, ok := architectures[compute]
	return a, ok
}
