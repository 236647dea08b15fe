// Package timetable says when something is due by the clock on the wall of a time
// zone.
package timetable

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // a machine may have no time zones of its own

	"github.com/robfig/cron/v3"
)

// Local is the name of the machine's own time zone.
const Local = "Local"

// Timetable is the minutes at which something is due. A time that daylight saving
// skips is due at the next minute that there is, and one that comes twice is due
// the first time.
type Timetable struct {
	cron cron.Schedule // over the readings of the wall clock, as times in UTC
	zone *time.Location
}

// fields are those of a cron expression, with what each takes.
var fields = []struct{ name, takes string }{
	{"minute", "0 to 59"}, {"hour", "0 to 23"}, {"day of the month", "1 to 31"}, {"month", "1 to 12, or JAN to DEC"}, {"day of the week", "0 to 6, or SUN to SAT"},
}

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// Error says what is wrong with a cron expression: a clause without its subject,
// and what it takes.
type Error struct{ Text, Takes string }

func (e *Error) Error() string { return e.Text + ": " + e.Takes }

// takesFields is what an expression takes.
const takesFields = `it takes minute, hour, day of the month, month and day of the week, such as "0 23 * * 1-5" for eleven in the evening from Monday to Friday`

// Zone returns the time zone of a name of the IANA database, or Local.
func Zone(name string) (*time.Location, error) {
	if name == "" {
		return nil, &Error{"names no time zone", `it takes a name such as "Europe/Berlin" or "UTC", or "Local" for the machine's own`}
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, &Error{"is no time zone", `it takes a name of the IANA database such as "Europe/Berlin" or "UTC", or "Local" for the machine's own`}
	}
	return zone, nil
}

// Parse reads a cron expression of five fields. The error is an *Error; a
// timetable that never comes due is one, too.
func Parse(expression string, zone *time.Location) (Timetable, error) {
	given := strings.Fields(expression)
	if len(given) != len(fields) || strings.ContainsAny(expression, "=@") {
		return Timetable{}, &Error{fmt.Sprintf("is no schedule of %d fields", len(fields)), takesFields}
	}
	for i, f := range fields {
		alone := []string{"*", "*", "*", "*", "*"}
		alone[i] = given[i]
		if _, err := parser.Parse(strings.Join(alone, " ")); err != nil || strings.Trim(given[i], ",") == "" {
			return Timetable{}, &Error{fmt.Sprintf("has %q as the %s", given[i], f.name), "it takes " + f.takes + `, with , and - and / between, or *`}
		}
	}
	c, err := parser.Parse(strings.Join(given, " "))
	if err != nil {
		return Timetable{}, &Error{"is no schedule", takesFields}
	}
	// These five years have all days that there are: the parser looks no further.
	if c.Next(time.Date(1999, 12, 31, 23, 59, 59, 0, time.UTC)).IsZero() {
		return Timetable{}, &Error{"never comes: no such day is in any year", "name a day that there is"}
	}
	return Timetable{c, zone}, nil
}

// Next returns the first time after one at which it is due.
func (t Timetable) Next(after time.Time) time.Time {
	// What is due later reads later on the wall, so nothing before this is missed.
	for wall := onTheWall(after.In(t.zone)); ; {
		next := t.cron.Next(wall)
		for next.IsZero() { // not within five years, as 29 February round 2100
			wall = wall.AddDate(5, 0, 0)
			next = t.cron.Next(wall)
		}
		if due := t.instant(next); due.After(after) {
			return due
		}
		wall = next
	}
}

// Last returns the last time after one, up to and with another, at which it was
// due, and whether there is any.
func (t Timetable) Last(after, until time.Time) (due time.Time, found bool) {
	for next := t.Next(after); !next.After(until); next = t.Next(next) {
		due, found = next, true
	}
	return due, found
}

// onTheWall is what a clock shows at a time, as a time in UTC.
func onTheWall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// instant returns when the clock shows a reading, the first time; else the next
// minute that there is.
func (t Timetable) instant(wall time.Time) time.Time {
	// Go's answer is right on one side of a change of the clock, it is not said which.
	guess := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), 0, 0, t.zone)
	begin, end := guess.ZoneBounds()
	near := []time.Time{guess}
	if !begin.IsZero() {
		near = append(near, begin.Add(-1))
	}
	if !end.IsZero() {
		near = append(near, end)
	}
	var first time.Time
	for _, n := range near {
		_, offset := n.In(t.zone).Zone()
		at := wall.Add(-time.Duration(offset) * time.Second).In(t.zone)
		if onTheWall(at).Equal(wall) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if !first.IsZero() {
		return first
	}
	change := end // the clock shows this reading never: it is put forward over it
	if onTheWall(guess).After(wall) {
		change = begin
	}
	change = change.In(t.zone)
	if s := change.Second(); s > 0 {
		change = change.Add(time.Duration(60-s) * time.Second)
	}
	return change
}
