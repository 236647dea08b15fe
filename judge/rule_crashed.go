package judge

import (
	"strings"

	"github.com/kernelwright/kernelwright"
)

// crashed tells a Python exception from a process that died.
func crashed(v view) (finding, bool) {
	if v.verdict.Status != kernelwright.Crashed {
		return finding{}, false
	}
	text := v.verdict.Reason + "\n" + v.verdict.Output
	f := finding{issue: "The candidate crashed: " + oneLine(v.verdict.Reason), evidence: v.evidence()}
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch {
	case has("illegal memory access"):
		f.why = "A kernel read or wrote where nothing of its lies: an index past the end of a tensor, a tail without a guard, or a product of indices that overflows 32 bits."
		f.fix = "Hold every index against the sizes that are passed in, the last block's above all, and compute offsets in 64 bits where a tensor has 2^31 elements or more."
		f.moves = []move{{"vector", toLeast}, {"split", toLeast}}
	case has("misaligned address"):
		f.why = "An access of 8 or 16 bytes goes to an address that is no multiple of that: a view that begins elsewhere, or rows whose length is no multiple of the vector."
		f.fix = "Use vectors only where the address and the row's length are multiples of them, and single elements elsewhere."
		f.moves = []move{{"vector", toLeast}, {"vector", toDown}}
	case has("too many resources requested"):
		f.why = "A block's threads need more registers than a multiprocessor has."
		f.fix = "Say __launch_bounds__(threads) with the number that is launched, or launch smaller blocks."
		f.moves = []move{{"share", toUp}, {"unroll", toLeast}, {"keep", toLeast}}
	case has("invalid configuration argument"):
		f.why = "A grid or a block is empty or too large, or asks for more shared memory than a block may have."
		f.fix = "Compute the grid from the sizes that are passed in, launch nothing where there is nothing to do, and set cudaFuncAttributeMaxDynamicSharedMemorySize above 48 KiB."
	case has("unspecified launch failure", "device-side assert"):
		f.why = "A kernel went astray: an index of shared memory, or a barrier that not every thread of a block reaches."
		f.fix = "Check the indices of shared memory, and take every __syncthreads out of branches that only some threads take."
	case has("SIGSEGV", "signal 11", "egmentation fault", "SIGBUS"):
		f.why = "Its process was killed for touching memory that is not its own: an index past the end of a tensor, a wrong stride, or a tail that a vector load reads beyond."
		f.fix = "Check every index against the sizes that are passed in, and handle the tail after the last full vector one element at a time."
		f.moves = []move{{"vector", toLeast}, {"nontemporal", toLeast}}
	case has("SIGILL", "signal 4", "llegal instruction"):
		f.why = "It used an instruction that this machine does not have."
		f.fix = "Use only what the device's instruction sets offer, or plain C++ that the compiler vectorises itself."
		f.moves = []move{{"vector", toDown}}
	case has("SIGABRT", "signal 6", "double free", "corrupt", "free()", "malloc()"):
		f.why = "The allocator found its own data overwritten: something was written outside a buffer, or freed twice."
		f.fix = "Check the size of every temporary buffer and every write into one."
	case has("MemoryError", "out of memory", "bad_alloc", "oom"):
		f.why = "It asked for more memory than a candidate may have."
		f.fix = "Do not keep temporaries the size of the input: work on one row or tile at a time."
		f.moves = []move{{"fuse", toMost}, {"tile", toDown}}
	case has("SIGFPE", "signal 8", "ZeroDivisionError"):
		f.why = "It divided an integer by zero, mostly a size or a tile count that is zero for this shape."
		f.fix = "Compute sizes from the shapes that are passed in, and treat the empty case first."
	case has("AttributeError", "has no attribute"):
		f.why = "It uses a name that is not there: mostly a parameter of the reference that ModelNew names otherwise, or a function that the library does not export."
		f.fix = "Give ModelNew the reference's parameters under the same names, or define load_reference_state, and export every function that is called as extern \"C\"."
	case has("TypeError"):
		f.why = "A call does not match its signature: ModelNew must take what Model takes, and forward likewise."
		f.fix = "Match the reference's signatures, and each native call its C++ prototype."
	case has("contiguous"):
		f.why = "A native call takes contiguous tensors only, and it got a view."
		f.fix = "Pass the strides and index with them, or call .contiguous() where a copy is cheap."
	case has("RuntimeError", "ValueError"):
		f.why = "PyTorch or the loader refused an operation; the message says which."
		f.fix = "Mend the operation that the message names, and change nothing else."
	default:
		f.why = "It raised or died before it gave a result."
		f.fix = "Read the message, mend the line it points at, and change nothing else."
	}
	return f, true
}
