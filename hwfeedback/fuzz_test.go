package hwfeedback

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright"
)

// Whatever bytes and descriptors come over a socket, reading ends with
// messages that keep to the limits, and then with an error; no descriptor is
// left open.
func FuzzReceive(f *testing.F) {
	frame := func(msg any) []byte {
		b, err := encode(msg)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	ready := frame(map[string]any{"v": 1, "type": "ready"})
	withFD := frame(map[string]any{"v": 1, "type": "result", "id": 1, "fds": 1})
	f.Add(ready, uint8(0))
	f.Add(append(append([]byte{}, ready...), withFD...), uint8(1))
	f.Add(withFD, uint8(1))
	f.Add(withFD, uint8(65))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{'}, uint8(0))
	f.Add([]byte{0, 0, 0, 0}, uint8(2))
	f.Add(ready[:len(ready)-3], uint8(0))
	null, err := os.Open(os.DevNull)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { null.Close() })
	f.Fuzz(func(t *testing.T, stream []byte, fds uint8) {
		if len(stream) == 0 || len(stream) > 64<<10 {
			return
		}
		ours, peer, err := socketPair()
		if err != nil {
			t.Fatal(err)
		}
		defer ours.close()
		fds %= 250 // the kernel takes no more
		rights := make([]int, fds)
		for i := range rights {
			rights[i] = int(null.Fd())
		}
		var oob []byte
		if fds > 0 {
			oob = unix.UnixRights(rights...)
		}
		n, err := unix.SendmsgN(int(peer.Fd()), stream, oob, nil, 0)
		peer.Close()
		if err != nil || n != len(stream) {
			t.Fatalf("sent %d of %d bytes: %v", n, len(stream), err)
		}
		got := 0
		for i := 0; ; i++ {
			m, files, err := ours.recv(t.Context(), inTime())
			if err != nil {
				if len(files) > 0 || m.Type != "" {
					t.Fatalf("a refused frame left %+v and %d files", m, len(files))
				}
				if strings.ContainsRune(err.Error(), '\n') || len(err.Error()) > 500 {
					t.Fatalf("no sentence: %q", err)
				}
				break
			}
			if m.FDs != len(files) || len(files) > maxFDs || i > len(stream)/frameHeader {
				t.Fatalf("message %d, %+v, has %d files", i, m, len(files))
			}
			got += len(files)
			closeAll(files)
		}
		if got > int(fds) {
			t.Fatalf("%d descriptors arrived, %d were sent", got, fds)
		}
	})
}

// An answer to an evaluation is a verdict that can be stored and sent, and
// comes back the same, or an error.
func FuzzEvaluateReply(f *testing.F) {
	sample, err := os.ReadFile("testdata/protocol/result_evaluate.json")
	if err != nil {
		f.Fatal(err)
	}
	var m message
	if err := json.Unmarshal(sample, &m); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(m.Result))
	f.Add([]byte(`{"verdict":{"status":"correct","candidate_ms":1e308,"baselines":null,"flags":["x"]},"learned":{"calibration":{},"baselines":null}}`))
	e := &Evaluator{versions: map[string]string{"torch": "2"}}
	e.device.Kind, e.device.Key = kernelwright.CPUDevice, "key"
	f.Fuzz(func(t *testing.T, result []byte) {
		var reply evaluateReply
		if json.Unmarshal(result, &reply) != nil || reply.Verdict == nil {
			return
		}
		v := e.complete(*reply.Verdict, kernelwright.Task{Fingerprint: "f"}, kernelwright.Candidate{Source: "x"}, kernelwright.Quick)
		if v.Task != "f" || v.Device != "cpu" || v.DeviceKey != "key" || v.Level != kernelwright.Quick || v.Cached {
			t.Fatalf("the referee's word was taken for ours: %+v", v)
		}
		if v.Baselines == nil || v.CostS == nil || v.Versions == nil || (v.Exported == "") == (v.ExportedSHA256 == kernelwright.HashText(v.Exported)) {
			t.Fatalf("incomplete: %+v", v)
		}
		stored, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var back kernelwright.Verdict
		if err := json.Unmarshal(stored, &back); err != nil {
			t.Fatalf("%s: %v", stored, err)
		}
		if again, err := json.Marshal(back); err != nil || !bytes.Equal(again, stored) {
			t.Fatalf("%s came back as %s: %v", stored, again, err)
		}
	})
}

// Whatever a lock file holds, a lease of it is granted, says who holds it, and
// its number is above what a sound file said.
func FuzzLeaseFile(f *testing.F) {
	f.Add([]byte(`{"pid":1,"fence":7,"since":1700000000000,"released":true}` + "\n"))
	f.Add([]byte(`{"pid":1,"fence":9223372036854775807}`))
	f.Add([]byte(`{"pid":-1,"fence":-5,"since":9223372036854775807}`))
	f.Add(bytes.Repeat([]byte(" "), 600))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(dir, "cpu.lock")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		before := readHolder(file)
		file.Close()
		if s := before.String(); s == "" || strings.ContainsRune(s, '\n') || len(s) > 200 {
			t.Fatalf("no name for a holder: %q", s)
		}
		lease, err := (&FileLeases{Dir: dir}).Acquire(t.Context(), "cpu")
		if err != nil {
			t.Fatal(err)
		}
		if lease.Fence() <= before.Fence && before.Fence < lastFence || lease.Fence() < 1 {
			t.Fatalf("fence %d after %d", lease.Fence(), before.Fence)
		}
		if err := lease.Release(); err != nil {
			t.Fatal(err)
		}
		if file, err = os.Open(path); err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if h := readHolder(file); h.PID != os.Getpid() || h.Fence != lease.Fence() || !h.Released {
			t.Fatalf("the file now says %+v", h)
		}
	})
}

// Whatever /proc and /sys say, the specs make sense.
func FuzzReadCPU(f *testing.F) {
	f.Add(twoCoresFourThreads, "MemTotal:       16384 kB\n", "max 100000", "32K")
	f.Add("processor : 0\n\nHardware : x\n", "MemTotal: -5 kB", "50000 100000", "-1M")
	f.Add("processor : -1\nprocessor : 9999999999\n", "", "1 0", "9223372036854775807K")
	f.Fuzz(func(t *testing.T, cpuinfo, meminfo, quota, size string) {
		c, err := readCPU(machine(map[string]string{
			"proc/cpuinfo": cpuinfo, "proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota,
			"sys/fs/cgroup/memory.max": size, "sys/devices/system/cpu/cpu0/cache/index0/level": "1",
			"sys/devices/system/cpu/cpu0/cache/index0/type": "Data", "sys/devices/system/cpu/cpu0/cache/index0/size": size,
		}), nil)
		if err != nil {
			return
		}
		s := c.specs
		if c.threads < 1 || s.Cores < 1 || s.Threads < 1 || c.threads > s.Cores || s.L1Bytes < 0 || s.MemoryBytes < 0 || s.ClockMHz < 0 || c.quota < 0 ||
			s.Model == "" || strings.ContainsRune(s.Model, '\n') {
			t.Fatalf("%+v", c)
		}
		if _, err := json.Marshal(s); err != nil {
			t.Fatal(err)
		}
	})
}

// What pip prints becomes one short line, and what a step's last words are
// becomes a reason.
func FuzzPipOutput(f *testing.F) {
	f.Add("  Downloading torch-2.11.0-cp311-none-linux.whl (100 MB)\n")
	f.Add("Installing collected packages: a, b, c")
	f.Add("ERROR: [Errno 28] No space left on device\r\n")
	f.Add("\x1b[31mTraceback\n  File \"x\"\nMemoryError")
	e := &environment{dataDir: "/data", now: time.Now}
	f.Fuzz(func(t *testing.T, out string) {
		for line := range strings.Lines(out) {
			if s := condense(strings.TrimRight(line, "\n")); strings.ContainsRune(s, '\n') {
				t.Fatalf("%q", s)
			}
		}
		last := &tail{limit: 1 << 10}
		last.add([]byte(out))
		kept := last.String()
		if !utf8.ValidString(kept) || len(kept) > 3<<10 || strings.ContainsRune(lastLine(kept), '\n') {
			t.Fatalf("%q", kept)
		}
		err := e.failed("install PyTorch", "/data/venv", os.ErrDeadlineExceeded, kept)
		if s := err.Error(); s == "" || strings.ContainsRune(s, '\n') {
			t.Fatalf("no sentence: %q", s)
		}
	})
}
