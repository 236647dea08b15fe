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
