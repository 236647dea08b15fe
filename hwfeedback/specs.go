package hwfeedback

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

// cpu is what this process may use of the machine: affinity and control
// groups can leave it less than there is.
type cpu struct {
	specs     kernelwright.Specs
	microcode string
	allowed   []int   // logical processors
	quota     float64 // processors that the control groups grant; 0 is no limit
	threads   int     // physical cores, as far as they are granted
}

// gpuThreads is how many threads of the host a process beside a GPU gets at
// most: what it draws and checks is on the GPU, and machines with eight of them
// have over a hundred cores.
const gpuThreads = 16

// measures returns how many threads to measure with, unless told otherwise.
func (c cpu) measures(onGPU bool) int {
	if onGPU {
		return min(c.threads, gpuThreads)
	}
	return c.threads
}

// isaFlags are the parts of an instruction set that change what a compiler or
// a Judge would do, in the names that /proc/cpuinfo has for them.
var isaFlags = []string{
	"sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512dq", "avx512bw", "avx512vl",
	"avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
	"asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2",
}

// readCPU reads the machine's specs from /proc and /sys under root. allowed is
// the affinity mask; empty means all.
func readCPU(root fs.FS, allowed []int) (cpu, error) {
	processors, err := parseCPUInfo(root)
	if err != nil {
		return cpu{}, err
	}
	if len(allowed) == 0 {
		for _, p := range processors {
			allowed = append(allowed, p.number)
		}
	}
	first := processors[0]
	c := cpu{allowed: allowed, microcode: first.fields["microcode"]}
	c.specs.Model = first.model()
	flags := strings.Fields(cmp.Or(first.fields["flags"], first.fields["Features"]))
	for _, f := range isaFlags {
		if slices.Contains(flags, f) {
			c.specs.ISA = append(c.specs.ISA, f)
		}
	}
	c.specs.VectorBits = vectorBits(root, c.specs.ISA)
	c.specs.Threads = len(allowed)
	c.specs.Cores = physicalCores(root, processors, allowed)
	readCaches(root, allowed[0], &c.specs)
	c.specs.ClockMHz = clock(root, processors, allowed[0])

	groups := controlGroups(root)
	c.quota = cpuQuota(root, groups)
	c.specs.MemoryBytes = memory(root, groups)
	// One thread a physical core: a second one on the same core shares its
	// vector units and caches, and PyTorch does the same.
	c.threads = c.specs.Cores
	if c.quota > 0 {
		c.threads = min(c.threads, max(1, int(math.Floor(c.quota+0.01))))
	}
	return c, nil
}

type processor struct {
	number int
	fields map[string]string
}

func parseCPUInfo(root fs.FS) ([]processor, error) {
	b, err := fs.ReadFile(root, "proc/cpuinfo")
	if err != nil {
		return nil, fmt.Errorf("read the processor's specs: %w", err)
	}
	var all []processor
	var general map[string]string // what some architectures say after the last processor
	for block := range strings.SplitSeq(string(b), "\n\n") {
		fields := map[string]string{}
		for line := range strings.Lines(block) {
			if k, v, ok := strings.Cut(line, ":"); ok {
				fields[strings.TrimSpace(k)] = strings.TrimSpace(v)
			}
		}
		if n, err := strconv.Atoi(fields["processor"]); err == nil {
			all = append(all, processor{n, fields})
		} else if len(fields) > 0 {
			general = fields
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("read the processor's specs: /proc/cpuinfo lists no processor")
	}
	for k, v := range general {
		if all[0].fields[k] == "" {
			all[0].fields[k] = v
		}
	}
	return all, nil
}

func (p processor) model() string {
	if m := cmp.Or(p.fields["model name"], p.fields["Model"], p.fields["cpu model"], p.fields["Hardware"]); m != "" {
		return strings.Join(strings.Fields(m), " ")
	}
	if i := p.fields["CPU implementer"]; i != "" {
		return fmt.Sprintf("ARM implementer %s part %s", i, p.fields["CPU part"])
	}
	return "unknown processor"
}

func vectorBits(root fs.FS, isa []string) int {
	if slices.Contains(isa, "sve") {
		if n := readInt(root, "proc/sys/abi/sve_default_vector_length"); n > 0 {
			return int(n) * 8
		}
	}
	for _, w := range []struct {
		flag string
		bits int
	}{{"avx512f", 512}, {"avx2", 256}, {"avx", 256}, {"sse4_2", 128}, {"asimd", 128}} {
		if slices.Contains(isa, w.flag) {
			return w.bits
		}
	}
	return 0
}

// physicalCores counts the cores behind the allowed logical processors.
func physicalCores(root fs.FS, processors []processor, allowed []int) int {
	byNumber := map[int]processor{}
	for _, p := range processors {
		byNumber[p.number] = p
	}
	cores := map[string]bool{}
	for _, n := range allowed {
		p, ok := byNumber[n]
		key := readText(root, fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", n))
		if key == "" && ok && p.fields["core id"] != "" {
			key = p.fields["physical id"] + "/" + p.fields["core id"]
		}
		cores[cmp.Or(key, strconv.Itoa(n))] = true
	}
	return max(1, len(cores))
}

func readCaches(root fs.FS, n int, specs *kernelwright.Specs) {
	for i := range 8 {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache/index%d", n, i)
		size := parseSize(readText(root, path.Join(dir, "size")))
		if readText(root, path.Join(dir, "type")) == "Instruction" {
			continue
		}
		switch readText(root, path.Join(dir, "level")) {
		case "1":
			specs.L1Bytes = size
		case "2":
			specs.L2Bytes = size
		case "3":
			specs.L3Bytes = size
		}
	}
}

// clock is the highest clock that the kernel knows of, in MHz.
func clock(root fs.FS, processors []processor, n int) float64 {
	if khz := readInt(root, fmt.Sprintf("sys/devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", n)); khz > 0 {
		return float64(khz) / 1e3
	}
	var highest float64
	for _, p := range processors {
		if mhz, err := strconv.ParseFloat(p.fields["cpu MHz"], 64); err == nil {
			highest = max(highest, mhz)
		}
	}
	return highest
}

// controlGroups maps each controller to this process's group, "" being the
// second version's single hierarchy.
func controlGroups(root fs.FS) map[string]string {
	groups := map[string]string{}
	b, _ := fs.ReadFile(root, "proc/self/cgroup") // absent: no limits
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			groups[controller] = parts[2]
		}
	}
	return groups
}

// groupFolders lists the folders whose limits hold for a group: its own and
// its parents'. Inside a container the group's path is often the host's, and
// only the root of the mount exists.
func groupFolders(root fs.FS, mounts []string, group string) []string {
	var dirs []string
	for _, m := range mounts {
		if _, err := fs.Stat(root, m); err != nil {
			continue
		}
		for g := path.Clean("/" + group); ; g = path.Dir(g) {
			dirs = append(dirs, path.Join(m, g))
			if g == "/" {
				break
			}
		}
	}
	return dirs
}

// cpuQuota is the least number of processors that any group grants; 0 is no
// limit.
func cpuQuota(root fs.FS, groups map[string]string) float64 {
	least := 0.0
	consider := func(quota, period float64) {
		if quota > 0 && period > 0 && (least == 0 || quota/period < least) {
			least = quota / period
		}
	}
	if group, ok := groups["cpu"]; ok {
		for _, dir := range groupFolders(root, []string{"sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"}, group) {
			consider(float64(readInt(root, path.Join(dir, "cpu.cfs_quota_us"))), float64(readInt(root, path.Join(dir, "cpu.cfs_period_us"))))
		}
	}
	for _, dir := range groupFolders(root, []string{"sys/fs/cgroup"}, groups[""]) {
		if f := strings.Fields(readText(root, path.Join(dir, "cpu.max"))); len(f) == 2 {
			quota, _ := strconv.ParseFloat(f[0], 64) // "max" is no limit
			period, _ := strconv.ParseFloat(f[1], 64)
			consider(quota, period)
		}
	}
	return least
}

// memory is the machine's memory or the least that any group grants.
func memory(root fs.FS, groups map[string]string) int64 {
	total := memoryOf(root, "MemTotal:")
	consider := func(limit int64) {
		if limit > 0 && (total == 0 || limit < total) {
			total = limit
		}
	}
	if group, ok := groups["memory"]; ok {
		for _, dir := range groupFolders(root, []string{"sys/fs/cgroup/memory"}, group) {
			consider(readInt(root, path.Join(dir, "memory.limit_in_bytes")))
		}
	}
	for _, dir := range groupFolders(root, []string{"sys/fs/cgroup"}, groups[""]) {
		consider(readInt(root, path.Join(dir, "memory.max")))
	}
	return total
}

// availableMemory is what nobody has of the machine's memory.
func availableMemory(root fs.FS) int64 { return memoryOf(root, "MemAvailable:") }

// memoryOf reads a line of /proc/meminfo.
func memoryOf(root fs.FS, name string) (bytes int64) {
	b, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			bytes = parseSize(strings.TrimSuffix(strings.ReplaceAll(strings.TrimSpace(rest), " ", ""), "B"))
		}
	}
	return bytes
}

func readText(root fs.FS, name string) string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// readInt returns 0 for what is absent or no number, such as "max".
func readInt(root fs.FS, name string) int64 {
	n, err := strconv.ParseInt(readText(root, name), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// parseSize reads "32K", "1024K", "16M"; 0 for anything else.
func parseSize(s string) int64 {
	unit := int64(1)
	switch {
	case strings.HasSuffix(strings.ToUpper(s), "K"):
		unit = 1 << 10
	case strings.HasSuffix(strings.ToUpper(s), "M"):
		unit = 1 << 20
	case strings.HasSuffix(strings.ToUpper(s), "G"):
		unit = 1 << 30
	}
	if unit > 1 {
		s = s[:len(s)-1]
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return 0
	}
	return n * unit
}

// affinity lists the logical processors that this process may run on.
func affinity() []int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	var allowed []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			allowed = append(allowed, i)
		}
	}
	return allowed
}

// deviceKey identifies what a time depends on: the processor, what of it may
// be used, and PyTorch. Microcode is in it because mitigations change speed;
// the kernel's version is not, or every security update would void the
// history.
func deviceKey(c cpu, threads int, versions map[string]string) string {
	b, err := json.Marshal(map[string]any{
		"model": c.specs.Model, "cores": c.specs.Cores, "processors": c.specs.Threads, "isa": c.specs.ISA,
		"microcode": c.microcode, "threads": threads, "quota": c.quota, "torch": versions["torch"],
	})
	if err != nil { // strings and finite numbers only
		panic(err)
	}
	sum := sha256.Sum256(b)
	return "cpu-" + hex.EncodeToString(sum[:])[:16]
}

// cpuDevice puts the device together, without ceilings.
func cpuDevice(c cpu, threads int, versions map[string]string) kernelwright.Device {
	key := deviceKey(c, threads, versions)
	return kernelwright.Device{
		Kind:  kernelwright.CPUDevice,
		Key:   key,
		Class: key,
		Name:  c.specs.Model,
		Specs: c.specs,
	}
}

// gpuDevice puts a GPU together, without ceilings.
func gpuDevice(g gpu.GPU, versions map[string]string) kernelwright.Device {
	key := func(parts ...string) string {
		sum := sha256.Sum256([]byte(joinKey(parts...)))
		return "cuda-" + hex.EncodeToString(sum[:])[:16]
	}
	branch, _, _ := strings.Cut(g.Driver, ".")
	return kernelwright.Device{
		Kind:  kernelwright.CUDADevice,
		Index: g.Index,
		Key:   key(g.UUID, g.Name, g.Driver, versions["torch"]),
		Class: key(g.Name, branch, versions["torch"]),
		Name:  g.Name,
		Specs: kernelwright.Specs{
			Model: g.Name, Cores: g.SMs, ISA: []string{"sm_" + strings.ReplaceAll(g.Compute, ".", "")},
			MemoryBytes: g.MemoryBytes, ClockMHz: float64(g.SMClockMHz), MemoryGBs: g.TheoreticalGBs(),
			SM: multiprocessor(g.Compute),
		},
	}
}

// warpThreads is how many threads a warp has on every GPU so far.
const warpThreads = 32

// multiprocessor returns what is known of one of a compute capability, nil where
// nothing is.
func multiprocessor(compute string) *kernelwright.SM {
	a, ok := gpu.ArchitectureOf(compute)
	if !ok {
		return nil
	}
	return &kernelwright.SM{
		Threads: warpThreads * a.Warps, Warps: a.Warps, Blocks: a.Blocks, Registers: a.Registers,
		SharedBytes: int64(a.SharedBytes), SharedOfBlock: int64(a.SharedOfBlock),
		FP32: a.FP32, FP64: a.FP64, Tensor: a.Tensor,
	}
}

// findGPU returns the GPU of this number. What stands in the way is a
// *SetupError.
func findGPU(index int) (gpu.GPU, error) {
	found, err := listGPUs(index)
	if err != nil {
		return gpu.GPU{}, err
	}
	if len(found) == 1 {
		return found[0], usable(found[0])
	}
	gpus, err := listGPUs()
	if err != nil {
		return gpu.GPU{}, err
	}
	return gpu.GPU{}, &SetupError{Reason: fmt.Sprintf("device cuda:%d does not exist: GPUs are counted from 0, and this machine shows %d", index, len(gpus)), Hint: fmt.Sprintf("say cuda:%d", gpus[0].Index)}
}

// gpuFinder finds a GPU as the driver described it a short while ago to a
// process that has left another one waiting: the driver's library takes 0.1 to
// 0.2 s to begin with. What changes a GPU meanwhile does not go unseen: a driver
// is loaded anew, or the machine started, and what else can come about, as the
// loss of it, whoever measures there meets.
type gpuFinder struct {
	root   fs.FS
	cache  Cache
	log    *slog.Logger
	within time.Duration
	ask    func(index int) (gpu.GPU, error)
}

// knownGPU is what the cache keeps of a GPU.
type knownGPU struct {
	GPU   gpu.GPU
	Stamp string // of the driver; see gpuFinder.stamp
	At    time.Time
}

func (f gpuFinder) find(index int) (gpu.GPU, error) {
	ctx, key, stamp := context.Background(), strconv.Itoa(index), f.stamp()
	var known knownGPU
	if stamp != "" && recall(ctx, f.cache, f.log, cacheGPU, key, &known) && known.Stamp == stamp {
		if age := time.Since(known.At); age >= 0 && age < f.within {
			return known.GPU, nil
		}
	}
	g, err := f.ask(index)
	if err == nil && stamp != "" {
		remember(ctx, f.cache, f.log, cacheGPU, key, knownGPU{g, stamp, time.Now()})
	}
	return g, err
}

// stamp tells a driver that was loaded from another, and the GPUs that this
// process sees from those of a container beside it; empty where no driver shows.
func (f gpuFinder) stamp() string {
	driver, err := fs.ReadFile(f.root, "proc/driver/nvidia/version")
	if err != nil {
		return ""
	}
	boot, _ := fs.ReadFile(f.root, "proc/sys/kernel/random/boot_id") // absent in some containers
	stamp := string(boot) + string(driver)
	for _, pattern := range []string{"dev/nvidia[0-9]*", "proc/driver/nvidia/gpus/*"} {
		found, _ := fs.Glob(f.root, pattern) // the pattern is well formed
		stamp += strings.Join(found, " ") + "\n"
	}
	return stamp
}

// Devices returns the devices that a name stands for, one at least: "cuda:0,2"
// is two, "cuda:all" every GPU that can be measured on. Errors are *SetupError.
func Devices(name string) ([]string, error) {
	kind, which, _ := strings.Cut(name, ":")
	if kind != string(kernelwright.CUDADevice) || which != "all" && !strings.Contains(which, ",") {
		return []string{name}, nil
	}
	var names []string
	for index := range strings.SplitSeq(which, ",") {
		names = append(names, kind+":"+index)
	}
	if which != "all" {
		return names, nil
	}
	gpus, err := listGPUs()
	if err != nil {
		return nil, err
	}
	return well(gpus)
}

func well(gpus []gpu.GPU) ([]string, error) {
	var names []string
	for _, g := range gpus {
		if usable(g) == nil {
			names = append(names, fmt.Sprintf("%s:%d", kernelwright.CUDADevice, g.Index))
		}
	}
	if len(names) == 0 {
		return nil, usable(gpus[0])
	}
	return names, nil
}

// firstGPU returns the first one that can be measured on, or what stands in the
// way of the first.
func firstGPU() (gpu.GPU, error) {
	gpus, err := listGPUs()
	if err != nil {
		return gpu.GPU{}, err
	}
	return first(gpus)
}

func first(gpus []gpu.GPU) (gpu.GPU, error) {
	for _, g := range gpus {
		if usable(g) == nil {
			return g, nil
		}
	}
	return gpus[0], usable(gpus[0])
}

// listGPUs returns what the driver shows: one at least, or of some numbers alone
// those that it shows.
func listGPUs(only ...int) ([]gpu.GPU, error) {
	gpus, err := gpu.List(only...)
	var absent *gpu.AbsentError
	if errors.As(err, &absent) {
		hint := "say --device cpu"
		if absent.Hint != "" {
			hint = absent.Hint + "; or " + hint
		}
		return nil, &SetupError{Reason: absent.Reason, Hint: hint, cause: err}
	}
	if err != nil {
		return nil, infrastructure("open", err)
	}
	return gpus, nil
}

// usable returns why nothing can be measured on a GPU.
func usable(g gpu.GPU) error {
	if g.MIG {
		return &SetupError{Reason: fmt.Sprintf("GPU %d (%s) is split into MIG instances, which share its clocks and memory: no time on one would hold", g.Index, g.Name), Hint: "name another GPU, or have its administrator switch MIG off"}
	}
	return nil
}

// selectDevice reads the name of a device. The index is a GPU's.
func selectDevice(name string) (kind kernelwright.DeviceKind, number int, err error) {
	said, index, indexed := strings.Cut(name, ":")
	switch kernelwright.DeviceKind(said) {
	case "", kernelwright.CPUDevice:
		if indexed {
			return "", 0, &SetupError{Reason: fmt.Sprintf("device %s does not exist: there is one cpu device", name), Hint: "say cpu"}
		}
		return kernelwright.CPUDevice, 0, nil
	case kernelwright.CUDADevice:
		n, err := strconv.ParseUint(cmp.Or(index, "0"), 10, 16)
		if indexed && (err != nil || index == "") {
			break
		}
		return kernelwright.CUDADevice, int(n), nil
	}
	return "", 0, &SetupError{Reason: fmt.Sprintf("there is no device %q", name), Hint: "devices are cpu and cuda, or cuda:1 for the second GPU, cuda:0,1 or cuda:all for several, or auto for a GPU where there is one"}
}
