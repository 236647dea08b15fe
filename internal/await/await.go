// Package await has tests wait for what comes soon, however busy the machine is.
package await

import (
	"testing"
	"time"
)

// Most bounds a wait for what comes within a second on a quiet machine: what takes
// longer never comes.
const Most = 5 * time.Minute

// Until returns when something is so, and fails the test when it never is. It is
// called by the test's own goroutine.
func Until(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(Most); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", Most, what)
		}
	}
}
