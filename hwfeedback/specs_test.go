package hwfeedback

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback/gpu"
)

func machine(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, content := range files {
		m[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return m
}

const twoCoresFourThreads = `processor	: 0
model name	: Intel(R)  Xeon(R) CPU @ 2.00GHz
microcode	: 0x1
cpu MHz		: 2000.5
physical id	: 0
core id		: 0
flags		: fpu sse4_2 avx avx2 fma avx512f

processor	: 1
cpu MHz		: 2500.0
physical id	: 0
core id		: 1
flags		: fpu

processor	: 2
physical id	: 0
core id		: 0

processor	: 3
physical id	: 0
core id		: 1
`

func TestReadCPU(t *testing.T) {
	root := machine(map[string]string{
		"proc/cpuinfo": twoCoresFourThreads,
		"proc/meminfo": "MemTotal:       16384 kB\nMemFree: 1 kB\n",
		"sys/devices/system/cpu/cpu0/cache/index0/level": "1\n", "sys/devices/system/cpu/cpu0/cache/index0/type": "Data\n", "sys/devices/system/cpu/cpu0/cache/index0/size": "32K\n",
		"sys/devices/system/cpu/cpu0/cache/index1/level": "1\n", "sys/devices/system/cpu/cpu0/cache/index1/type": "Instruction\n", "sys/devices/system/cpu/cpu0/cache/index1/size": "64K\n",
		"sys/devices/system/cpu/cpu0/cache/index2/level": "2\n", "sys/devices/system/cpu/cpu0/cache/index2/type": "Unified\n", "sys/devices/system/cpu/cpu0/cache/index2/size": "1M\n",
	})
	c, err := readCPU(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := kernelwright.Specs{
		Model: "Intel(R) Xeon(R) CPU @ 2.00GHz", Cores: 2, Threads: 4, ISA: []string{"sse4_2", "avx", "fma", "avx2", "avx512f"},
		VectorBits: 512, L1Bytes: 32 << 10, L2Bytes: 1 << 20, MemoryBytes: 16 << 20, ClockMHz: 2500,
	}
	if !reflect.DeepEqual(c.specs, want) || c.threads != 2 || c.quota != 0 {
		t.Errorf("got  %+v, %d threads\nwant %+v", c.specs, c.threads, want)
	}
	pinned, err := readCPU(root, []int{1, 3})
	if err != nil || pinned.specs.Cores != 1 || pinned.specs.Threads != 2 || pinned.threads != 1 {
		t.Errorf("pinned to one core: %+v, %v", pinned, err)
	}
	if c.measures(false) != 2 || c.measures(true) != 2 {
		t.Errorf("%d and %d threads, want one for each core", c.measures(false), c.measures(true))
	}
	if c.threads = 128; c.measures(false) != 128 || c.measures(true) != gpuThreads {
		t.Errorf("%d and %d threads of 128 cores", c.measures(false), c.measures(true))
	}
}

func TestReadCPUOnARM(t *testing.T) {
	c, err := readCPU(machine(map[string]string{
		"proc/cpuinfo":                           "processor\t: 0\nFeatures\t: fp asimd sve bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n\nprocessor\t: 1\n\n",
		"proc/sys/abi/sve_default_vector_length": "32\n",
	}), nil)
	if err != nil || c.specs.Model != "ARM implementer 0x41 part 0xd40" || c.specs.VectorBits != 256 || c.specs.Cores != 2 {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestControlGroups(t *testing.T) {
	for name, tt := range map[string]struct {
		files   map[string]string
		quota   float64
		threads int
		memory  int64
	}{
		"v2": {map[string]string{
			"proc/self/cgroup":                   "0::/a/b\n",
			"sys/fs/cgroup/a/cpu.max":            "150000 100000\n",
			"sys/fs/cgroup/a/b/cpu.max":          "max 100000\n",
			"sys/fs/cgroup/a/b/memory.max":       "1048576\n",
			"sys/fs/cgroup/a/memory.max":         "max\n",
			"sys/fs/cgroup/unrelated/cpu.max":    "1000 100000\n",
			"sys/fs/cgroup/unrelated/memory.max": "1\n",
		}, 1.5, 1, 1 << 20},
		"v2 in a container": {map[string]string{
			"proc/self/cgroup":         "0::/not/visible\n",
			"sys/fs/cgroup/cpu.max":    "400000 100000\n",
			"sys/fs/cgroup/memory.max": "2097152\n",
		}, 4, 2, 2 << 20},
		"v1": {map[string]string{
			"proc/self/cgroup": "4:memory:/x\n2:cpu,cpuacct:/x\n",
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us":  "50000\n",
			"sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":    "9223372036854771712\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes":  "4194304\n",
		}, 0.5, 1, 4 << 20},
		"v1 without limits": {map[string]string{
			"proc/self/cgroup":                           "2:cpu:/\n",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us":         "-1\n",
			"sys/fs/cgroup/cpu/cpu.cfs_period_us":        "100000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0, 2, 16 << 20},
		"none": {map[string]string{}, 0, 2, 16 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			tt.files["proc/cpuinfo"] = twoCoresFourThreads
			tt.files["proc/meminfo"] = "MemTotal: 16384 kB\n"
			c, err := readCPU(machine(tt.files), nil)
			if err != nil || c.quota != tt.quota || c.threads != tt.threads || c.specs.MemoryBytes != tt.memory {
				t.Errorf("got quota %g, %d threads, %d bytes, %v", c.quota, c.threads, c.specs.MemoryBytes, err)
			}
		})
	}
}

func TestReadCPUWithoutProc(t *testing.T) {
	for _, files := range []map[string]string{{}, {"proc/cpuinfo": "nothing here"}} {
		if _, err := readCPU(machine(files), nil); err == nil {
			t.Error("no error")
		}
	}
}

func TestThisMachine(t *testing.T) {
	c, err := readCPU(os.DirFS("/"), affinity())
	if err != nil {
		t.Fatal(err)
	}
	if c.specs.Cores < 1 || c.threads < 1 || c.threads > c.specs.Threads || c.specs.MemoryBytes < 1<<28 || c.specs.Model == "" {
		t.Errorf("got %+v", c)
	}
}

func TestDeviceKey(t *testing.T) {
	c := cpu{specs: kernelwright.Specs{Model: "a", Cores: 2}}
	versions := map[string]string{"torch": "2.11.0", "python": "3.11"}
	key := deviceKey(c, 2, versions)
	if key != deviceKey(c, 2, map[string]string{"torch": "2.11.0", "python": "3.12"}) {
		t.Error("the key depends on Python's version")
	}
	other := c
	other.specs.ISA = []string{"avx2"}
	for name, k := range map[string]string{
		"threads": deviceKey(c, 1, versions),
		"torch":   deviceKey(c, 2, map[string]string{"torch": "2.12.0"}),
		"isa":     deviceKey(other, 2, versions),
	} {
		if k == key {
			t.Errorf("the key does not depend on %s", name)
		}
	}
}

func TestSelectDevice(t *testing.T) {
	for _, name := range []string{"", "cpu"} {
		if kind, _, err := selectDevice(name); err != nil || kind != kernelwright.CPUDevice {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, want := range map[string]int{"cuda": 0, "cuda:0": 0, "cuda:1": 1} {
		if kind, index, err := selectDevice(name); err != nil || kind != kernelwright.CUDADevice || index != want {
			t.Errorf("%q: %v %d %v", name, kind, index, err)
		}
	}
	for name, says := range map[string]string{
		"cuda:x": "no device", "cuda:": "no device", "cuda:-1": "no device", "gpu": "no device", "cpu:0": "one cpu device",
	} {
		_, _, err := selectDevice(name)
		var setup *SetupError
		if !errors.As(err, &setup) || !strings.Contains(setup.Reason, says) || setup.Hint == "" {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestGPUChecks(t *testing.T) {
	h200 := gpu.GPU{Name: "NVIDIA H200", Compute: "9.0", MemoryBytes: 150e9, Driver: "580.1", CUDA: "13.0"}
	busy := h200
	busy.Index, busy.MIG = 1, true
	busy.State = gpu.State{Throttled: []string{"power limit"}, ECCErrors: 2, Processes: []gpu.Process{{PID: 1}, {PID: 2}}}
	// Who may read counters is the harness's to say, and the same for root.
	ours := fstest.MapFS{"proc/driver/nvidia/params": {Data: []byte("RmProfilingAdminOnly: 1\n")}, "proc/2/cmdline": {Data: []byte("python\x00-I\x00data/harness/00ff/kwharness/process/forkserver.py\x00--idle\x00300")}}
	checks := gpuChecks(ours, []gpu.GPU{h200, busy}, nil)
	if len(checks) != 3 || !checks[0].OK || checks[0].Name != "cuda:0" || checks[1].OK || !checks[2].OK {
		t.Fatalf("%+v", checks)
	}
	const sm = "an SM holds 2048 threads in 64 warps, 32 blocks, 65536 registers, 228 KiB of shared memory (a block 227 KiB); multiply-adds a clock: " +
		"float32 128, float64 64; tensor cores bfloat16 2048, float16 2048, float64 128, float8 4096, int8 4096, tf32 1024"
	if checks[2].Name != "sm_90" || checks[2].Note != sm { // once, though there are two
		t.Errorf("%+v", checks[2])
	}
	if checks := gpuChecks(fstest.MapFS{}, []gpu.GPU{{Compute: "99.0"}}, nil); len(checks) != 1 {
		t.Errorf("of what is not known is said %+v", checks)
	}
	for _, says := range []string{"MIG", "contexts of other processes on it: 1; while one computes", "power limit", "2 memory errors"} {
		if !strings.Contains(checks[1].Cost, says) {
			t.Errorf("%q is missing: %s", says, checks[1].Cost)
		}
	}
	none := &gpu.AbsentError{Reason: "there is no NVIDIA driver here", Hint: "install it"}
	if checks := gpuChecks(fstest.MapFS{}, nil, none); len(checks) != 1 || !checks[0].OK || !strings.Contains(checks[0].Note, "no NVIDIA driver") {
		t.Errorf("%+v", checks)
	}
	if checks := gpuChecks(fstest.MapFS{"dev/nvidiactl": {}}, nil, none); len(checks) != 1 || checks[0].OK || !strings.Contains(checks[0].Cost, "install it") {
		t.Errorf("%+v", checks)
	}
}

func TestARefereeIsOfOneGPU(t *testing.T) {
	on := func(g *gpu.GPU) string {
		b, err := json.Marshal((&Evaluator{gpu: g}).refereeConfig())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if one, other, cpu := on(&gpu.GPU{UUID: "GPU-1"}), on(&gpu.GPU{UUID: "GPU-2"}), on(nil); one == other || one == cpu {
		t.Errorf("%s, %s, %s", one, other, cpu)
	}
}

func TestGPUDevice(t *testing.T) {
	g := gpu.GPU{Index: 1, UUID: "GPU-1", Name: "NVIDIA H200", Compute: "9.0", SMs: 132, MemClockMHz: 3201, BusBits: 6144, Driver: "580.1"}
	d := gpuDevice(g, map[string]string{"torch": "2.11.0"})
	if d.String() != "cuda:1" || d.Specs.ISA[0] != "sm_90" || d.Specs.Cores != 132 || d.Specs.MemoryGBs < 4900 || d.Specs.MemoryGBs > 4930 {
		t.Errorf("%+v", d)
	}
	if m := d.Specs.SM; m == nil || m.Threads != 2048 || m.SharedOfBlock != 227<<10 || m.Tensor["float16"] != 2048 {
		t.Errorf("of an SM is known %+v", m)
	}
	for name, change := range map[string]func(*gpu.GPU){
		"the GPU": func(g *gpu.GPU) { g.UUID = "GPU-2" }, "the driver": func(g *gpu.GPU) { g.Driver = "581" },
	} {
		other := g
		change(&other)
		if gpuDevice(other, map[string]string{"torch": "2.11.0"}).Key == d.Key {
			t.Errorf("the key does not depend on %s", name)
		}
	}
	class := func(change func(*gpu.GPU), torch string) string {
		other := g
		change(&other)
		return gpuDevice(other, map[string]string{"torch": torch}).Class
	}
	if class(func(g *gpu.GPU) { g.UUID, g.Index, g.Driver = "GPU-2", 0, "580.2" }, "2.11.0") != d.Class {
		t.Error("another GPU of the model is of another class")
	}
	for what, other := range map[string]string{
		"model":   class(func(g *gpu.GPU) { g.Name = "NVIDIA H100" }, "2.11.0"),
		"branch":  class(func(g *gpu.GPU) { g.Driver = "590.1" }, "2.11.0"),
		"PyTorch": class(func(*gpu.GPU) {}, "2.12.0"),
	} {
		if other == d.Class {
			t.Errorf("the class does not depend on the %s", what)
		}
	}
	if _, err := gpu.List(); err != nil {
		_, err := findGPU(0)
		var setup *SetupError
		if !errors.As(err, &setup) || !strings.Contains(setup.Hint, "--device cpu") {
			t.Errorf("without a GPU: %v", err)
		}
	}
}

func TestAGPUIsAskedForOnce(t *testing.T) {
	now := gpu.GPU{Index: 1, UUID: "GPU-1", Name: "NVIDIA H200"}
	var asked int
	var failure error
	files := map[string]string{"proc/driver/nvidia/version": "580", "proc/sys/kernel/random/boot_id": "one", "dev/nvidia1": "", "dev/nvidiactl": ""}
	cache := &memoryCache{}
	finder := gpuFinder{cache: cache, log: slog.New(slog.DiscardHandler), within: time.Hour, ask: func(int) (gpu.GPU, error) {
		asked++
		return now, failure
	}}
	find := func(index, want int) {
		t.Helper()
		before := asked
		finder.root = machine(files)
		g, err := finder.find(index)
		if !errors.Is(err, failure) || err == nil && !reflect.DeepEqual(g, now) {
			t.Error(g, err)
		}
		if asked-before != want {
			t.Errorf("asked %d times, want %d", asked-before, want)
		}
	}
	find(1, 1)
	find(1, 0)
	find(0, 1) // another one
	for name, content := range map[string]string{
		"proc/driver/nvidia/version": "590", "proc/sys/kernel/random/boot_id": "two", "dev/nvidia2": "", "proc/driver/nvidia/gpus/0000:01:00.0": "",
	} {
		files[name] = content
		now.UUID += "'"
		find(1, 1)
		find(1, 0)
	}
	finder.within = 0 // it was too long ago
	find(1, 1)
	finder.within = time.Hour
	cache.values["gpu 1"] = []byte("{")
	find(1, 1)
	failure = errors.New("no driver")
	find(2, 1)
	find(2, 1) // a failure is not kept
	failure = nil
	delete(files, "proc/driver/nvidia/version") // no driver shows
	find(1, 1)
	find(1, 1)
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"32K", "1M", "", "K", "-1K", "9223372036854775807K", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n := parseSize(s); n < 0 {
			t.Fatalf("%q is %d", s, n)
		}
	})
}

func TestAutoIsAGPUWhereThereIsOne(t *testing.T) {
	want := "cuda"
	if _, err := gpu.List(); err != nil {
		want = "cpu"
	}
	var said bytes.Buffer
	o, err := Options{DataDir: "x", Device: "auto", Log: slog.New(slog.NewTextHandler(&said, nil))}.normalised()
	if err != nil || o.Device != want {
		t.Errorf("auto is %q, want %q: %v", o.Device, want, err)
	}
	if told := strings.Contains(said.String(), "candidates run on the CPU"); told != (want == "cpu") {
		t.Errorf("it says %q", said.String())
	}
	if want == "cpu" && len(o.Baselines) != len(Baselines) {
		t.Errorf("the CPU has baselines %v", o.Baselines)
	}
}

func TestAutoTakesTheFirstGPUThatCanBeMeasuredOn(t *testing.T) {
	split, whole := gpu.GPU{Index: 0, Name: "H100", MIG: true}, gpu.GPU{Index: 1, Name: "H100"}
	if g, err := first([]gpu.GPU{split, whole}); err != nil || g.Index != 1 {
		t.Errorf("got %d, %v", g.Index, err)
	}
	var setup *SetupError
	if _, err := first([]gpu.GPU{split}); !errors.As(err, &setup) || !strings.Contains(setup.Reason, "GPU 0 (H100) is split into MIG instances") {
		t.Errorf("got %v", err)
	}
}

func TestDevices(t *testing.T) {
	for name, want := range map[string][]string{
		"": {""}, "cpu": {"cpu"}, "cpu:all": {"cpu:all"}, "cuda": {"cuda"}, "cuda:1": {"cuda:1"}, "cuda:0,2": {"cuda:0", "cuda:2"},
	} {
		if got, err := Devices(name); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q is %q, %v; want %q", name, got, err, want)
		}
	}
	split, whole := gpu.GPU{Index: 0, Name: "H100", MIG: true}, gpu.GPU{Index: 3, Name: "H100"}
	if got, err := well([]gpu.GPU{split, whole, {Index: 4}}); err != nil || !slices.Equal(got, []string{"cuda:3", "cuda:4"}) {
		t.Errorf("%q, %v", got, err)
	}
	var setup *SetupError
	if _, err := well([]gpu.GPU{split}); !errors.As(err, &setup) {
		t.Error(err)
	}
	o, err := Options{DataDir: "x", Device: "cuda:2,1"}.normalised()
	if err != nil || o.Device != "cuda:2" {
		t.Errorf("a verb that takes one device takes the first: %q, %v", o.Device, err)
	}
}
