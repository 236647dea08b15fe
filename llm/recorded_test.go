package llm_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

func keyed(text string, k llm.Key) llm.Request {
	r := llmtest.Ask(text)
	r.Key = k
	return r
}

func TestRecordAndReplay(t *testing.T) {
	key := llm.Key{Run: 3, Round: 1, Agent: "coder"}
	journal := &llmtest.Journal{}
	live := &scripted{answer: func(context.Context, int, llm.Request) (llm.Reply, error) {
		return llm.Reply{Text: "a\r\n\u2028<b>", Stop: llm.StopEnd, Usage: llm.Usage{In: 10, Out: 5}, ToolCalls: []llm.ToolCall{{ID: "x", Name: "read", Arguments: "{"}}}, nil
	}}
	prices := llm.Prices{"test:*": {In: 1e6, Out: 0, AsOf: "2026-11-23"}}
	m := llm.WithJournal(live, journal, prices, func() time.Time { return someDay })
	first, err := m.Generate(t.Context(), keyed("hello", key))
	if err != nil {
		t.Fatal(err)
	}
	records := journal.Records()
	if len(records) != 1 || records[0].Key != key || records[0].Model != "test:scripted" || *records[0].CostUSD != 10 || records[0].BeganMS != someDay.UnixMilli() || !reflect.DeepEqual(records[0].Reply, first) {
		t.Errorf("recorded %+v", records)
	}
	// The run goes on after a crash: nothing is asked twice.
	again, err := m.Generate(t.Context(), keyed("hello", key))
	if err != nil || !reflect.DeepEqual(again, first) || live.made() != 1 || len(journal.Records()) != 1 {
		t.Errorf("%+v, %v; %d calls", again, err, live.made())
	}
	// Other settings ask another question, under the same key.
	if _, err := m.Generate(t.Context(), keyed("hello!", key)); err != nil || live.made() != 2 {
		t.Errorf("%v; %d calls", err, live.made())
	}
	// A call of no run is recorded, and not recalled.
	for range 2 {
		if _, err := m.Generate(t.Context(), keyed("hello", llm.Key{Agent: "coder"})); err != nil {
			t.Error(err)
		}
	}
	if live.made() != 4 || len(journal.Records()) != 4 {
		t.Errorf("%d calls, %d records", live.made(), len(journal.Records()))
	}

	replay := llm.Replay("test:scripted", journal)
	if got, err := replay.Generate(t.Context(), keyed("hello", key)); err != nil || !reflect.DeepEqual(got, first) {
		t.Errorf("replayed %+v, %v", got, err)
	}
	for _, test := range []struct {
		m    llm.Model
		r    llm.Request
		want string
	}{
		{replay, keyed("hello?", key), "call 0 of the coder in round 1 of run 3 was recorded with another request, or another model"},
		{llm.Replay("test:other", journal), keyed("hello", key), "with another request, or another model"},
		{replay, keyed("hello", llm.Key{Run: 3, Round: 2, Agent: "judge", Seq: 4}), "call 4 of the judge in round 2 of run 3 was never recorded"},
		{replay, llmtest.Ask("hello"), "a call of no run"},
	} {
		if _, err := test.m.Generate(t.Context(), test.r); kindOf(err) != llm.NotRecorded || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}

func TestRecordedFailures(t *testing.T) {
	key := llm.Key{Run: 1}
	// A failure is not recorded: it is asked again.
	journal := &llmtest.Journal{}
	live := failing(llm.Quota)
	m := llm.WithJournal(live, journal, nil, nil)
	if _, err := m.Generate(t.Context(), keyed("a", key)); kindOf(err) != llm.Quota || len(journal.Records()) != 0 {
		t.Errorf("%v", err)
	}
	if _, err := m.Generate(t.Context(), keyed("a", key)); err != nil || journal.Records()[0].CostUSD != nil {
		t.Errorf("%v; %+v", err, journal.Records())
	}
	// A reply that comes while the caller leaves is paid for, so it is kept.
	ctx, cancel := context.WithCancel(t.Context())
	leaving := &scripted{answer: func(context.Context, int, llm.Request) (llm.Reply, error) {
		cancel()
		return llm.Reply{Text: "late"}, nil
	}}
	if _, err := llm.WithJournal(leaving, journal, nil, nil).Generate(ctx, keyed("b", key)); err != nil || len(journal.Records()) != 2 {
		t.Errorf("%v; %d records", err, len(journal.Records()))
	}
	// What cannot be recorded is not returned: a replay could not have it.
	if _, err := llm.WithJournal(failing(), brokenJournal{}, nil, nil).Generate(t.Context(), llmtest.Ask("a")); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("%v", err)
	}
}

type brokenJournal struct{ llm.Journal }

func (brokenJournal) Append(context.Context, llm.Record) error { return errors.New("disk full") }

// That a request was too long is a part of how a run went: a replay is told so, and
// only who can ask asks again.
func TestTooLongIsRecorded(t *testing.T) {
	key := llm.Key{Run: 3, Agent: "coder"}
	journal := &llmtest.Journal{}
	fits := false
	live := &scripted{answer: func(context.Context, int, llm.Request) (llm.Reply, error) {
		if !fits {
			return llm.Reply{}, &llm.Error{Kind: llm.TooLong, Model: "test:scripted", Text: "too long"}
		}
		return llm.Reply{Text: "yes", Stop: llm.StopEnd}, nil
	}}
	m, replay := llm.WithJournal(live, journal, nil, nil), llm.Replay("test:scripted", journal)
	for n := 1; n <= 2; n++ {
		if reply, err := m.Generate(t.Context(), keyed("hello", key)); kindOf(err) != llm.TooLong || !reflect.DeepEqual(reply, llm.Reply{}) || live.made() != n || len(journal.Records()) != 1 {
			t.Errorf("%+v, %v; %d calls, %d records", reply, err, live.made(), len(journal.Records()))
		}
	}
	if c := journal.Records()[0].CostUSD; c == nil || *c != 0 {
		t.Errorf("it cost %v", c)
	}
	if reply, err := replay.Generate(t.Context(), keyed("hello", key)); kindOf(err) != llm.TooLong || !reflect.DeepEqual(reply, llm.Reply{}) {
		t.Errorf("replayed %+v, %v", reply, err)
	}
	fits = true // the server has more room now
	for _, m := range []llm.Model{m, replay, m} {
		if reply, err := m.Generate(t.Context(), keyed("hello", key)); err != nil || reply.Text != "yes" || live.made() != 3 {
			t.Errorf("%+v, %v; %d calls", reply, err, live.made())
		}
	}
	// Of no run there is nothing to replay.
	fits = false
	if _, err := m.Generate(t.Context(), keyed("hello", llm.Key{})); kindOf(err) != llm.TooLong || len(journal.Records()) != 2 {
		t.Errorf("%v; %d records", err, len(journal.Records()))
	}
}
