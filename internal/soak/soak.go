// Package soak tells tests which of them run: every day all but the long ones,
// in CI every two or three weeks those that have others of their kind, by make soak all.
package soak

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// Env holds "1" for long forms and all tests, "weekly" for all tests in their
// daily form, and nothing every day.
const Env = "KERNELWRIGHT_SOAK"

// Long has a test take its long form.
func Long() bool { return os.Getenv(Env) == "1" }

// Daily has a test take its shortest form.
func Daily() bool { return os.Getenv(Env) == "" }

// DayEnv holds the day, since 1970, whose cases run; without it that is today.
const DayEnv = "KERNELWRIGHT_DAY"

// Day is the day whose cases run.
func Day(t testing.TB) int {
	t.Helper()
	s := os.Getenv(DayEnv)
	if s == "" {
		return int(time.Now().Unix() / (24 * 60 * 60))
	}
	day, err := strconv.Atoi(s)
	if err != nil || day < 0 {
		t.Fatalf("%s is %q, not a day since 1970", DayEnv, s)
	}
	return day
}

// Turn reports whether case k of many that are like each other runs: every day one in
// so many does, each in turn, and all where more is asked for. The log names the day.
func Turn(t testing.TB, k, days int) bool {
	t.Helper()
	return !Daily() || (k+Day(t))%days == 0
}

// Only skips a test that takes minutes, unless all is asked for.
func Only(t testing.TB) {
	t.Helper()
	if !Long() {
		t.Skip("long: it runs by make soak (" + Env + "=1)")
	}
}

// Weekly skips a test that is long and has another one of its kind every day,
// unless more is asked for.
func Weekly(t testing.TB) {
	t.Helper()
	if Daily() {
		t.Skip("weekly: it runs by make soak, and in a round of two or three weeks in CI (" + Env + "=weekly)")
	}
}
