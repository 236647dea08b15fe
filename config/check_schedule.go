package config

import (
	"errors"
	"fmt"

	"github.com/kernelwright/kernelwright/internal/timetable"
)

// maxHours is thirty days, past which a night can only be a slip.
const maxHours = 720

// Timetable returns when nights are due, and whether any are.
func (s Schedule) Timetable() (t timetable.Timetable, on bool, err error) {
	if s.Cron == "" {
		return t, false, nil
	}
	zone, err := timetable.Zone(s.TimeZone)
	if err == nil {
		t, err = timetable.Parse(s.Cron, zone)
	}
	return t, err == nil, err
}

// checkSchedule says what is wrong with it, and what keeps a night from ever
// coming.
func checkSchedule(c Config, fail func(key, text, hint string)) {
	const table = "training.schedule."
	s := c.Training.Schedule
	say := func(key, value string, err error) {
		var wrong *timetable.Error
		if errors.As(err, &wrong) {
			fail(table+key, fmt.Sprintf("is %q, which %s", value, wrong.Text), wrong.Takes)
		}
	}
	zone, err := timetable.Zone(s.TimeZone)
	say("time_zone", s.TimeZone, err)
	if s.Cron != "" {
		_, err := timetable.Parse(s.Cron, zone)
		say("cron", s.Cron, err)
		if c.Sandbox == "weak" {
			fail(table+"cron", `is set, and no night can come: sandbox is "weak"`, `what a policy writes is run with sandbox = "strict" alone; empty is for no nights`)
		}
	}
	if !(s.Hours > 0 && s.Hours <= maxHours) {
		fail(table+"hours", fmt.Sprintf("is %v", s.Hours), fmt.Sprintf("it takes a number of hours above 0 and up to %d, such as 8.0", maxHours))
	}
	if !(s.GPUHours >= 0 && s.GPUHours <= maxHours*maxThreads) {
		fail(table+"gpu_hours", fmt.Sprintf("is %v", s.GPUHours), "it takes a number of hours, such as 4.0, and 0 for no limit")
	}
}
