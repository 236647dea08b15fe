package store

import (
	"fmt"
	"os"
	"strings"
)

// Self names this process so that no other one, before or after, has the same
// name: its number alone is given out again.
func Self() string {
	return owner(os.Getpid())
}

// Alive reports whether the process that Self named still runs on this
// machine.
func Alive(name string) bool {
	var pid int
	if _, err := fmt.Sscanf(name, "%d@", &pid); err != nil || pid <= 0 {
		return false
	}
	return owner(pid) == name
}

// owner is the process number, when it started, and which boot that was.
func owner(pid int) string {
	start := "unknown"
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		// The name in brackets may hold anything: what follows the last one counts.
		text := string(b)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if len(fields) > 19 && fields[0] != "Z" { // 22nd field: start time; a zombie does no more work
			start = fields[19]
		}
	} else if pid != os.Getpid() {
		return ""
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // absent in some containers: then the start time has to do
	return fmt.Sprintf("%d@%s@%s", pid, start, strings.TrimSpace(string(boot)))
}
