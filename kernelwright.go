// Package kernelwright holds the words of the project as plain types: task,
// candidate, verdict, feedback, run, round. It has no behaviour beyond the
// invariants of these values and imports nothing of ours, so that every room
// can speak of the same things without depending on another room.
//
// All durations inside JSON are milliseconds where the name ends in _ms and
// seconds where it ends in _s. All times are Unix milliseconds.
package kernelwright

import (
	"crypto/sha256"
	"encoding/hex"
)

// Version of the programs and of everything they write. It is part of every
// cache key, so a verdict never outlives the rules that produced it.
const Version = "0.1.0"

// HashText returns the hex SHA-256 of a text: the name under which the store
// keeps it.
func HashText(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
