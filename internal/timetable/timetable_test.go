package timetable

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func parse(t testing.TB, expression, zone string) Timetable {
	t.Helper()
	z, err := Zone(zone)
	if err != nil {
		t.Fatal(err)
	}
	table, err := Parse(expression, z)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func at(t testing.TB, text string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Clocks in Berlin are put forward on 29 March 2026 from two to three, and back on
// 25 October from three to two; on Lord Howe by half an hour; in Santiago at
// midnight; and Samoa had no 30 December 2011.
func TestDueTimes(t *testing.T) {
	for name, tt := range map[string]struct {
		cron, zone, after string
		want              []string
	}{
		"every evening":           {"30 22 * * *", "Europe/Berlin", "2026-06-01T00:00:00Z", []string{"2026-06-01T20:30:00Z", "2026-06-02T20:30:00Z"}},
		"working days":            {"0 23 * * 1-5", "UTC", "2026-11-27T12:00:00Z", []string{"2026-11-27T23:00:00Z", "2026-11-30T23:00:00Z"}},
		"by name":                 {"0 23 * DEC sat", "UTC", "2026-11-27T12:00:00Z", []string{"2026-12-05T23:00:00Z"}},
		"not now":                 {"0 23 * * *", "UTC", "2026-11-27T23:00:00Z", []string{"2026-11-28T23:00:00Z"}},
		"skipped":                 {"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		"skipped, each once":      {"*/20 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"}},
		"skipped and after":       {"0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"}},
		"twice":                   {"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		"twice, after the first":  {"30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", []string{"2026-10-26T01:30:00Z"}},
		"twice, between":          {"30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", []string{"2026-10-26T01:30:00Z"}},
		"the hour after it":       {"0 3 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{"2026-10-25T02:00:00Z"}},
		"the hours of that night": {"0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", []string{"2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"}},
		"half an hour":            {"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		"midnight":                {"0 0 * * *", "America/Santiago", "2026-09-05T12:00:00Z", []string{"2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"}},
		"a day that was skipped":  {"0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", []string{"2011-12-30T10:00:00Z", "2012-12-29T22:00:00Z"}},
		"leap day":                {"0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
	} {
		t.Run(name, func(t *testing.T) {
			table, last := parse(t, tt.cron, tt.zone), at(t, tt.after)
			for i, want := range tt.want {
				last = table.Next(last)
				if got := last.UTC().Format(time.RFC3339); got != want {
					t.Errorf("%d: %s, want %s", i, got, want)
				}
			}
		})
	}
}

// The last time that was due, with the end and without the beginning.
func TestTheLastTimeThatWasDue(t *testing.T) {
	table := parse(t, "0 23 * * *", "UTC")
	for _, tt := range []struct{ after, until, want string }{
		{"2026-11-27T15:00:00Z", "2026-11-27T22:59:59Z", ""},
		{"2026-11-27T15:00:00Z", "2026-11-27T23:00:00Z", "2026-11-27T23:00:00Z"},
		{"2026-11-27T23:00:00Z", "2026-11-28T07:00:00Z", ""},
		{"2026-11-25T00:00:00Z", "2026-11-28T07:00:00Z", "2026-11-27T23:00:00Z"},
	} {
		due, found := table.Last(at(t, tt.after), at(t, tt.until))
		if found != (tt.want != "") || found && !due.Equal(at(t, tt.want)) {
			t.Errorf("%v: %v %v", tt, due, found)
		}
	}
}

func TestWhatIsNoTimetable(t *testing.T) {
	for _, tt := range []struct{ cron, says string }{
		{"", "is no schedule of 5 fields"}, {"0 23 * *", "is no schedule of 5 fields"}, {"@daily", "is no schedule of 5 fields"}, {"0 0 23 * * *", "is no schedule of 5 fields"},
		{"TZ=UTC 0 23 * *", "is no schedule of 5 fields"}, {"60 23 * * *", `has "60" as the minute`}, {"0 24 * * *", `has "24" as the hour`}, {"0 23 0 * *", `has "0" as the day of the month`},
		{"0 23 * 13 *", `has "13" as the month`}, {"0 23 * * 7", `has "7" as the day of the week`}, {"0 23 * * mo", `has "mo" as the day of the week`}, {", 23 * * *", `has "," as the minute`},
		{"0 22-2 * * *", `has "22-2" as the hour`}, {"*/0 * * * *", `has "*/0" as the minute`}, {"0 23 30 2 *", "never comes"}, {"0 23 31 2,4,6,9,11 *", "never comes"},
	} {
		_, err := Parse(tt.cron, time.UTC)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(e.Text, tt.says) || e.Takes == "" {
			t.Errorf("%q: %v", tt.cron, err)
		}
	}
	for _, name := range []string{"", "Europe/Berln", "../etc/passwd", "CEST"} {
		if _, err := Zone(name); err == nil {
			t.Errorf("%q is a time zone", name)
		}
	}
}

// readings returns what a clock shows in each minute from one time to another.
func readings(zone *time.Location, from, to time.Time) (all []time.Time, first map[time.Time]time.Time) {
	first = map[time.Time]time.Time{}
	for m := from; m.Before(to); m = m.Add(time.Minute) {
		wall := onTheWall(m.In(zone))
		all = append(all, wall)
		if _, known := first[wall]; !known {
			first[wall] = m
		}
	}
	return all, first
}

// Against a clock that is looked at in each minute: a reading is due when it is shown
// first, and one that is never shown as soon as a later one is.
func TestAClockAgrees(t *testing.T) {
	zones := []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca", "Asia/Kolkata", "Europe/Dublin"}
	rapid.Check(t, func(t *rapid.T) {
		zone, err := Zone(rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		year := rapid.IntRange(2005, 2045).Draw(t, "year")
		// A day on which the clock is changed, or any.
		from := time.Date(year, 1, 1, 0, 0, 0, 0, zone)
		if _, end := from.ZoneBounds(); !end.IsZero() && end.Year() == year {
			from = end
			if _, next := end.ZoneBounds(); rapid.Bool().Draw(t, "second") && !next.IsZero() {
				from = next
			}
		}
		from = from.Add(-time.Duration(rapid.IntRange(2, 30).Draw(t, "hours")) * time.Hour).Truncate(time.Minute)
		to := from.Add(3 * 24 * time.Hour)
		minute, hour := rapid.IntRange(0, 59).Draw(t, "minute"), rapid.IntRange(0, 23).Draw(t, "hour")
		table, err := Parse(fmt.Sprintf("%d %d * * *", minute, hour), zone)
		if err != nil {
			t.Fatal(err)
		}
		shown, first := readings(zone, from, to)
		var want []time.Time
		for day := onTheWall(from.In(zone)).Truncate(24 * time.Hour); day.Before(shown[len(shown)-1]); day = day.AddDate(0, 0, 1) {
			reading := day.Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute)
			due, known := first[reading]
			for later := reading; !known && later.Before(reading.Add(24*time.Hour)); due, known = first[later] {
				later = later.Add(time.Minute)
			}
			if known && due.After(from) && due.Before(to) && reading.After(shown[0]) {
				want = append(want, due)
			}
		}
		var got []time.Time
		for due := table.Next(from); due.Before(to); due = table.Next(due) {
			got = append(got, due)
		}
		if !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Errorf("%s %02d:%02d from %v: %v, want %v", zone, hour, minute, from, got, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"0 23 * * 1-5", "*/5 * 1,15 JAN-MAR mon", "TZ= 1 2 3 4", "0 0 30 2 *", "99999999999999999999 * * * *"} {
		f.Add(s)
	}
	after := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC)
	zone, err := Zone("Europe/Berlin")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		table, err := Parse(text, zone)
		if err != nil {
			return
		}
		last := after
		for range 3 {
			next := table.Next(last)
			if !next.After(last) || next.In(zone).Second() != 0 {
				t.Errorf("%q: after %v comes %v", text, last, next)
			}
			last = next
		}
	})
}
