package hwfeedback

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kernelwright/kernelwright"
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
		if kind, err := selectDevice(name); err != nil || kind != kernelwright.CPUDevice {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, says := range map[string]string{
		"cuda": "not available", "cuda:1": "not available", "cuda:x": "no device", "gpu": "no device", "cpu:0": "one cpu device",
	} {
		_, err := selectDevice(name)
		var setup *SetupError
		if !errors.As(err, &setup) || !strings.Contains(setup.Reason, says) || setup.Hint == "" {
			t.Errorf("%q: %v", name, err)
		}
	}
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
