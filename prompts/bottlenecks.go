package prompts

import (
	"slices"
	"strings"
	"unicode"
)

// Bottleneck is what a candidate is held up by, or what is wrong with it, in
// one word of a fixed vocabulary.
type Bottleneck string

// The vocabulary. Skills name these in their front matter.
const (
	Memory        Bottleneck = "memory"         // DRAM's bandwidth
	Cache         Bottleneck = "cache"          // a cache's bandwidth, or its misses
	Latency       Bottleneck = "latency"        // waiting, with nothing else in flight
	Compute       Bottleneck = "compute"        // arithmetic or tensor units
	Occupancy     Bottleneck = "occupancy"      // too few warps on an SM
	Launch        Bottleneck = "launch"         // what calls and launches cost
	Uncoalesced   Bottleneck = "uncoalesced"    // bytes moved that nobody asked for
	BankConflicts Bottleneck = "bank_conflicts" // of shared memory
	Barriers      Bottleneck = "barriers"       // threads that wait for each other
	Registers     Bottleneck = "registers"      // too many, or spilled
	Tail          Bottleneck = "tail"           // a last wave that fills few SMs
	ExtraPasses   Bottleneck = "extra_passes"   // bytes moved more than once
	NotVectorised Bottleneck = "not_vectorised" // scalar loads or arithmetic
	IdleCores     Bottleneck = "idle_cores"     // cores or SMs without work
	Numerics      Bottleneck = "numerics"       // wrong within rounding, NaN, overflow, precision
	BuildError    Bottleneck = "build_error"    // a compiler refused it
	Crash         Bottleneck = "crash"          // it crashed, hangs, or its result is plainly wrong
)

// Bottlenecks is the vocabulary.
var Bottlenecks = []Bottleneck{Memory, Cache, Latency, Compute, Occupancy, Launch, Uncoalesced, BankConflicts, Barriers, Registers,
	Tail, ExtraPasses, NotVectorised, IdleCores, Numerics, BuildError, Crash}

// phrases are what judges, profilers and compilers say, in the form that
// normal gives. A phrase is found where words begin with it: "spill" in
// "spilled". A longer phrase goes before a shorter one at the same place.
var phrases = map[string]Bottleneck{
	// Names of the built-in Judge's rules that are no word of the vocabulary.
	"memory ceiling": Memory, "cache bound": Cache, "compute ceiling": Compute, "call overhead": Launch, "pytorch share": ExtraPasses,
	"instruction parallelism": Latency, "too many threads": IdleCores, "extra traffic": ExtraPasses, "narrow access": NotVectorised, "vendor share": ExtraPasses, "reduced precision": Numerics, "nan handling": Numerics,
	"overflow": Numerics, "accumulation": Numerics, "wrong result": Crash, "crashed": Crash, "timed out": Crash,

	// Families of inputs on which a formula that is right as it stands loses bits or NaN.
	"family scaled": Numerics, "family heavy tails": Numerics, "family spikes": Numerics, "family shifted": Numerics, "family all equal": Numerics,
	"family denormals": Numerics, "family near overflow": Numerics, "family planted": Numerics, "being finite": Numerics, "not finite": Numerics,

	"memory bound": Memory, "memory traffic": ExtraPasses, "memory bandwidth": Memory, "dram": Memory, "hbm": Memory, "bandwidth": Memory,
	"cache": Cache, "l1tex": Cache, "l1 bound": Cache, "l2": Cache, "lts": Cache, "hit rate": Cache,
	"latency": Latency, "stall": Latency, "long scoreboard": Latency, "short scoreboard": BankConflicts, "dependen": Latency, "pipelin": Latency,
	"stall long scoreboard": Latency, "stall short scoreboard": BankConflicts, "stall barrier": Barriers, "stall mio throttle": BankConflicts,
	"stall math pipe": Compute, "stall lg throttle": Uncoalesced, "stalled barrier": Barriers, "stalled long scoreboard": Latency,
	"stalled short scoreboard": BankConflicts, "issue slot": Latency, "eligible warp": Latency,
	"compute bound": Compute, "arithmetic": Compute, "tensor core": Compute, "tensor pipe": Compute, "wgmma": Compute, "mma": Compute, "flop": Compute, "math pipe": Compute,
	"occupancy": Occupancy, "active warps": Occupancy, "warps active": Occupancy, "theoretical occupancy": Occupancy,
	"launch": Launch, "cuda graph": Launch, "overhead": Launch, "too many kernels": Launch,
	"launch bounds": Registers, "out of resources": Occupancy, "outofresources": Occupancy, "too many resources": Occupancy,
	"uncoalesced": Uncoalesced, "coalesc": Uncoalesced, "sector": Uncoalesced, "strided access": Uncoalesced, "wasted byte": Uncoalesced,
	"bank conflict": BankConflicts, "shared memory": BankConflicts, "shared memory conflict": BankConflicts, "mio throttle": BankConflicts,
	"barrier": Barriers, "syncthreads": Barriers, "synchroni": Barriers,
	"register": Registers, "spill": Registers, "local memory": Registers, "stack": Registers,
	"tail": Tail, "wave": Tail, "partial wave": Tail, "load imbalance": Tail,
	"extra pass": ExtraPasses, "fewer passes": ExtraPasses, "fuse": ExtraPasses, "fusion": ExtraPasses, "intermediate": ExtraPasses,
	"not vectorised": NotVectorised, "not vectorized": NotVectorised, "vectoris": NotVectorised, "vectoriz": NotVectorised, "scalar load": NotVectorised, "float4": NotVectorised,
	"idle core": IdleCores, "idle sm": IdleCores, "idle multiprocessor": IdleCores, "few blocks": IdleCores, "too few blocks": IdleCores, "small grid": IdleCores,
	"numeric": Numerics, "precision": Numerics, "rounding": Numerics, "nan": Numerics, "inf": Numerics, "infinite": Numerics, "infinity": Numerics, "tf32": Numerics, "tolerance": Numerics, "cancellation": Numerics,
	"build error": BuildError, "build failed": BuildError, "does not compile": BuildError, "compil": BuildError, "undefined": BuildError, "ptxas error": BuildError,
	"crash": Crash, "illegal memory": Crash, "illegal address": Crash, "misaligned": Crash, "out of bounds": Crash, "segmentation": Crash, "sigsegv": Crash,
	"deadlock": Crash, "hang": Crash, "race": Crash,
}

// wholeWords are phrases that begin other words too often to stand for them.
var wholeWords = map[string]bool{"l2": true, "lts": true, "mma": true, "inf": true, "nan": true, "race": true, "hang": true, "tail": true, "stack": true}

// FindBottlenecks returns the words of the vocabulary that texts speak of: the
// names of a Judge's rule, of a metric, a sentence of a feedback. The order is
// that of their first mention, each once.
func FindBottlenecks(texts ...string) []Bottleneck {
	var found []Bottleneck
	for _, text := range texts {
		words := strings.Fields(normal(text))
		for i := 0; i < len(words); {
			b, n := phraseAt(words[i:])
			if n == 0 {
				i++
				continue
			}
			i += n
			if !slices.Contains(found, b) {
				found = append(found, b)
			}
		}
	}
	return found
}

// longestPhrase is the number of words in the longest phrase.
const longestPhrase = 3

// phraseAt returns the longest phrase at the beginning of words, and how many
// words it has; 0 where there is none.
func phraseAt(words []string) (Bottleneck, int) {
	for n := min(longestPhrase, len(words)); n > 0; n-- {
		here := strings.Join(words[:n], " ")
		if b := Bottleneck(strings.ReplaceAll(here, " ", "_")); slices.Contains(Bottlenecks, b) {
			return b, n
		}
		if b, ok := phrases[here]; ok {
			return b, n
		}
		// The last word may go on: the longest beginning of it that is a phrase.
		least := len(here) - len(words[n-1]) + 1
		for end := len(here) - 1; end >= least; end-- {
			if b, ok := phrases[here[:end]]; ok && !wholeWords[here[:end]] {
				return b, n
			}
		}
	}
	return "", 0
}

// normal writes a text in small letters and digits with single spaces.
func normal(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return ' '
	}, text)
}
