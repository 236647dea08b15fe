package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
)

func say(role llm.Role, text string) llm.Message { return llm.Message{Role: role, Text: text} }

// talkOf is three calls of a run: one of the Coder that the next goes on from,
// and one of the Judge. The Coder's tokens are told.
func talkOf(run int64, i int) []llm.Record {
	price := 0.25
	first := []llm.Message{say(llm.System, "you write kernels"), say(llm.User, fmt.Sprintf("say %d", i))}
	a := llm.Record{
		Key: llm.Key{Run: run, Agent: "coder"}, Model: "p:m", Request: llm.Request{Messages: first, MaxTokens: 100}, CostUSD: &price, BeganMS: 5, TookMS: 2,
		Reply: llm.Reply{Text: fmt.Sprintf("answer %d", i), Reasoning: "well", Stop: llm.StopTools, ToolCalls: []llm.ToolCall{{ID: "1", Name: "read", Arguments: `{"path":"a"}`}},
			Usage: llm.Usage{In: 10, Out: 4, Reasoning: 1}, PromptIDs: []int{1, 2, 3}, TokenIDs: []int{4, 5}, LogProbs: []float64{-0.5, -1e-9}},
	}
	b := a
	b.Key.Round, b.BeganMS = 1, 9
	b.Request.Messages = slices.Concat(first, []llm.Message{a.Reply.Message(), {Role: llm.ToolRole, Text: "the file", Call: "1", Name: "read"}})
	b.Request.Append = true
	b.Reply = llm.Reply{Text: "done", Stop: llm.StopEnd, Usage: llm.Usage{In: 20, Out: 2}, PromptIDs: []int{1, 2, 3, 4, 5, 6, 7}, TokenIDs: []int{8}, LogProbs: []float64{-2}}
	c := llm.Record{Key: llm.Key{Run: run, Agent: "judge"}, Model: "p:other", Request: llm.Request{Messages: []llm.Message{say(llm.User, fmt.Sprintf("judge %d", i))}},
		Reply: llm.Reply{Text: "{}", Stop: llm.StopEnd, Usage: llm.Usage{In: 3, Out: 1, Estimated: true}}, BeganMS: 12}
	return []llm.Record{a, b, c}
}

func recall(t testing.TB, s *Store, want llm.Record) {
	t.Helper()
	got, found, err := s.Recall(t.Context(), want.Key, want.Request.Digest(want.Model))
	want.Request.Key = want.Key
	if err != nil || !found || asJSON(t, got) != asJSON(t, want) || got.Request.Key != want.Key {
		t.Fatalf("%v %v\n%s\n%s", found, err, asJSON(t, got), asJSON(t, want))
	}
}

func TestCallsAreRecalled(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	run := newRun(t, s)
	talk := talkOf(run.ID, 0)
	for range 2 { // again is fine
		for _, r := range talk {
			ok(t, s.Append(ctx, r))
		}
	}
	for _, r := range talk {
		recall(t, s, r)
	}
	// The run goes on with other settings: another question under the same key.
	other := talk[0]
	other.Request.MaxTokens, other.Reply.Text, other.CostUSD = 200, "another answer", nil
	ok(t, s.Append(ctx, other))
	recall(t, s, other)
	recall(t, s, talk[0])
	// Asked twice, answered twice: both were paid for, and the first one counts.
	twice := talk[2]
	twice.Reply.Text, twice.BeganMS = "later", 99
	ok(t, s.Append(ctx, twice))
	recall(t, s, talk[2])
	if got := must(s.Calls(ctx, run.ID))(t); len(got) != 5 || asJSON(t, got[3]) != asJSON(t, other) || asJSON(t, got[4]) != asJSON(t, twice) {
		t.Errorf("%s", asJSON(t, got))
	}
	// A request that was too long once, and was answered later.
	long := talk[0]
	long.Key.Round, long.Request.Key.Round, long.Reply = 5, 5, llm.Reply{Stop: llm.StopTooLong}
	ok(t, s.Append(ctx, long))
	recall(t, s, long)
	fitted := long
	fitted.Reply, fitted.BeganMS = talk[0].Reply, 7
	ok(t, s.Append(ctx, fitted))
	recall(t, s, fitted)
	// What a call was fitted to: that of the answered one, and nothing where nothing was.
	for i, fit := range []*llm.Fit{{Window: llm.Window{Context: 4096, Reply: 900, BytesPerToken: 2.5, Compact: true}, LeftOut: []string{"lessons", "skills"}}, {Window: llm.Window{Context: 2048}}} {
		short := talk[0]
		short.Key.Round, short.Request.Key.Round, short.Request.Fit = 6, 6, fit
		if i == 1 {
			short.Reply, short.Request.MaxTokens = llm.Reply{Stop: llm.StopTooLong}, 1
		}
		ok(t, s.Append(ctx, short))
		recall(t, s, short)
		if got, stop, err := s.LastFit(ctx, short.Key, short.Model); err != nil || stop != talk[0].Reply.Stop || got == nil || got.Context != 4096 || !got.Compact || len(got.LeftOut) != 2 {
			t.Errorf("%+v %q %v", got, stop, err)
		}
	}
	if got, stop, err := s.LastFit(ctx, long.Key, "p:other"); got != nil || stop != "" || err != nil {
		t.Errorf("another model's: %+v %q %v", got, stop, err)
	}
	for _, key := range []llm.Key{long.Key, {Run: run.ID, Agent: "coder", Round: 7}} {
		if got, stop, err := s.LastFit(ctx, key, long.Model); got != nil || err != nil || (stop == "") != (key.Round == 7) {
			t.Errorf("%+v %q %v", got, stop, err)
		}
	}
	for _, key := range []llm.Key{{}, {Run: run.ID, Agent: "coder", Round: 7}, {Run: run.ID, Agent: "coder", Seq: 1}, {Run: 99, Agent: "coder"}} {
		if _, found, err := s.Recall(ctx, key, talk[0].Request.Digest("p:m")); found || err != nil {
			t.Errorf("%+v: %v %v", key, found, err)
		}
		if known := must(s.Known(ctx, key))(t); known {
			t.Errorf("%+v is known", key)
		}
	}
	if known := must(s.Known(ctx, talk[1].Key))(t); !known {
		t.Error("a call is not known")
	}
	if _, found, err := s.Recall(ctx, talk[0].Key, talk[0].Request.Digest("p:other")); found || err != nil {
		t.Errorf("another model's: %v %v", found, err)
	}
	if err := s.Append(ctx, llm.Record{Key: llm.Key{Run: 99}}); err == nil || !strings.Contains(err.Error(), "run 99") {
		t.Errorf("a run that is not there: %v", err)
	}
}

func TestSpend(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	run, other := newRun(t, s), newRun(t, s)
	price := 0.25
	charge := func(key llm.Key, model string, ended int64, usd *float64, failed llm.Kind) {
		must(s.Book(ctx, llm.Charge{Key: key, Model: model, Usage: llm.Usage{In: 10, Out: 4}, USD: usd, EndedMS: ended, Took: 1500 * time.Millisecond, Failed: failed}))(t)
	}
	charge(llm.Key{Run: run.ID, Agent: "coder"}, "p:m", 5, &price, "")
	charge(llm.Key{Run: run.ID, Agent: "coder"}, "p:m", 9, &price, llm.Truncated) // paid for, and asked again
	charge(llm.Key{Run: run.ID, Agent: "judge"}, "p:other", 12, nil, "")
	for range 2 {
		charge(llm.Key{}, "p:m", 3*dayMS+7, &price, "") // of no run
	}
	must(s.Book(ctx, llm.Charge{Key: llm.Key{Run: other.ID}, Model: "q:refused", EndedMS: 5 * dayMS, Failed: llm.BadKey}))(t)
	if got, want := must(s.Spend(ctx, other.ID))(t), (kw.Spend{Calls: 1}); got != want { // it used nothing
		t.Errorf("%+v", got)
	}
	_, err := s.write.Exec(`DELETE FROM charges WHERE model = 'q:refused'`)
	ok(t, err)
	if got, want := must(s.Spend(ctx, run.ID))(t), (kw.Spend{Calls: 3, TokensIn: 30, TokensOut: 12, USD: 0.5, Unpriced: 1, AtWorst: 1, USDAtWorst: 0.25}); got != want {
		t.Errorf("%+v", got)
	}
	for _, none := range []int64{other.ID, 0} {
		if got := must(s.Spend(ctx, none))(t); got != (kw.Spend{}) {
			t.Errorf("%+v", got)
		}
	}
	two := kw.Spend{Calls: 2, TokensIn: 20, TokensOut: 8, USD: 0.5}
	first := two.Add(kw.Spend{AtWorst: 1, USDAtWorst: price})
	one := kw.Spend{Calls: 1, TokensIn: 10, TokensOut: 4, Unpriced: 1}
	for _, tt := range []struct {
		of   llm.Scope
		want kw.Spend
		wall time.Duration
	}{
		{llm.Scope{}, first.Add(two).Add(one), 7500 * time.Millisecond}, {llm.Scope{Run: run.ID, Model: "p:m"}, first, 3 * time.Second},
		{llm.Scope{Since: time.UnixMilli(3 * dayMS)}, two, 3 * time.Second}, {llm.Scope{Since: time.UnixMilli(9), Model: "p:other"}, one, 1500 * time.Millisecond},
		{llm.Scope{Model: "p"}, kw.Spend{}, 0},
	} {
		if got := must(s.Spent(ctx, tt.of))(t); got.Spend != tt.want || got.Wall != tt.wall {
			t.Errorf("%+v: %+v", tt.of, got)
		}
	}
	want := []Spending{{3 * dayMS, "p:m", two}, {0, "p:m", first}, {0, "p:other", one}}
	if got := must(s.Spending(ctx, 0))(t); asJSON(t, got) != asJSON(t, want) {
		t.Errorf("%s", asJSON(t, got))
	}
	if got := must(s.Spending(ctx, 3*dayMS))(t); asJSON(t, got) != asJSON(t, want[:1]) {
		t.Errorf("%s", asJSON(t, got))
	}
	if _, err := s.Book(ctx, llm.Charge{Key: llm.Key{Run: 99}, Model: "p:m"}); err == nil {
		t.Error("a run that is not there was charged")
	}
}

// A charge counts from when it is booked, with what it can be; its own process
// leaves it out, and another one takes its place.
func TestRebook(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	run := newRun(t, s)
	worst, real := 7.0, 0.5
	c := llm.Charge{Key: llm.Key{Run: run.ID, Agent: "coder"}, Model: "p:m", Usage: llm.Usage{In: 900, Out: 100, Estimated: true}, USD: &worst, EndedMS: 5, Took: time.Minute, Failed: llm.Unfinished}
	id := must(s.Book(ctx, c))(t)
	second := must(s.Book(ctx, c))(t)
	if got := must(s.Spent(ctx, llm.Scope{Except: []int64{second}}))(t); got.Spend != (kw.Spend{Calls: 1, TokensIn: 900, TokensOut: 100, USD: 7, Unfinished: 1, AtWorst: 1, USDAtWorst: 7}) || got.Wall != time.Minute {
		t.Errorf("%+v", got)
	}
	if got := must(s.Spent(ctx, llm.Scope{Run: run.ID, Except: []int64{id, second}}))(t); got != (llm.Spent{}) {
		t.Errorf("%+v", got)
	}
	c.Usage, c.USD, c.EndedMS, c.Took, c.Failed = llm.Usage{In: 10, Out: 4, CachedIn: 3, CacheWrite: 2}, &real, dayMS+9, time.Second, ""
	ok(t, s.Rebook(ctx, id, c))
	if got := must(s.Spent(ctx, llm.Scope{Since: time.UnixMilli(dayMS)}))(t); got.Spend != (kw.Spend{Calls: 1, TokensIn: 10, TokensOut: 4, USD: 0.5, CachedIn: 3, CacheWrite: 2}) || got.Wall != time.Second {
		t.Errorf("%+v", got)
	}
	// What was not answered is listed, with what was booked of it.
	c = llm.Charge{Key: llm.Key{Run: run.ID, Round: 1, Agent: "judge", Seq: 2}, Model: "p:j", EndedMS: dayMS + 10, Took: time.Second, Failed: llm.RateLimited}
	must(s.Book(ctx, c))(t)
	got := must(s.Unanswered(ctx, run.ID))(t)
	if len(got) != 2 || got[0].Failed != llm.Unfinished || *got[0].USD != worst || got[0].Usage.Out != 100 || asJSON(t, got[1]) != asJSON(t, c) {
		t.Errorf("%+v", got)
	}
	if got := must(s.Spend(ctx, run.ID))(t); got.Calls != 3 || got.AtWorst != 1 || got.USDAtWorst != worst {
		t.Errorf("%+v", got)
	}
	if err := s.Rebook(ctx, 99, c); err == nil || !strings.Contains(err.Error(), "charge 99") {
		t.Errorf("one that is not there: %v", err)
	}
}

func drawMessage(t *rapid.T, label string) llm.Message {
	m := say(rapid.SampledFrom([]llm.Role{llm.User, llm.Assistant, llm.ToolRole}).Draw(t, label+" role"), rapid.String().Draw(t, label))
	if rapid.Bool().Draw(t, label+" calls") {
		m.ToolCalls = []llm.ToolCall{{ID: rapid.String().Draw(t, label+" id"), Name: "read", Arguments: rapid.String().Draw(t, label+" arguments")}}
	}
	if rapid.Bool().Draw(t, label+" carries") {
		m.Carry = json.RawMessage(`{"signature":"<&>"}`)
	}
	m.Call = rapid.SampledFrom([]string{"", "1"}).Draw(t, label+" call")
	return m
}

// Whatever is appended is recalled, whichever talk it goes on from.
func TestRecallReturnsWhatWasAppended(t *testing.T) {
	s := openTest(t)
	ids := rapid.SliceOfN(rapid.IntRange(0, 3), 0, 6)
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		run, err := s.CreateRun(ctx, kw.Run{Task: "f", Status: kw.RunDone})
		if err != nil {
			rt.Fatal(err)
		}
		var all []llm.Record
		for i := range rapid.IntRange(1, 5).Draw(rt, "calls") {
			r := llm.Record{Key: llm.Key{Run: run.ID, Round: rapid.IntRange(0, 2).Draw(rt, "round"), Agent: rapid.SampledFrom([]string{"coder", "judge"}).Draw(rt, "agent"), Seq: i},
				Model: rapid.StringMatching(`[a-z]{1,3}:[a-z]{1,3}`).Draw(rt, "model"), BeganMS: rapid.Int64Range(0, 1<<50).Draw(rt, "began"), TookMS: rapid.Int64Range(0, 1e6).Draw(rt, "took")}
			if i > 0 && rapid.Bool().Draw(rt, "goes on") {
				before := rapid.SampledFrom(all).Draw(rt, "from")
				r.Request.Messages = slices.Concat(before.Request.Messages, []llm.Message{before.Reply.Message()})
				r.Request.Append = true
				r.Reply.PromptIDs = append(append([]int{}, before.Reply.PromptIDs...), before.Reply.TokenIDs...)
			}
			for range rapid.IntRange(0, 3).Draw(rt, "messages") {
				r.Request.Messages = append(r.Request.Messages, drawMessage(rt, "message"))
			}
			if rapid.Bool().Draw(rt, "settings") {
				heat := rapid.Float64Range(0, 2).Draw(rt, "temperature")
				r.Request.Temperature, r.Request.Schema = &heat, &llm.Schema{Name: "s", Schema: json.RawMessage(`{"type":"object"}`)}
				price := rapid.Float64Range(0, 9).Draw(rt, "price")
				r.CostUSD = &price
			}
			r.Reply.Text, r.Reply.Reasoning = rapid.String().Draw(rt, "text"), rapid.String().Draw(rt, "reasoning")
			last := drawMessage(rt, "reply")
			r.Reply.ToolCalls, r.Reply.Carry, r.Reply.RequestID = last.ToolCalls, last.Carry, last.Call
			r.Reply.Usage = llm.Usage{In: rapid.Int64Range(0, 1e9).Draw(rt, "in"), CachedIn: 1, CacheWrite: rapid.Int64Range(0, 9).Draw(rt, "written"), Estimated: rapid.Bool().Draw(rt, "estimated")}
			r.Reply.PromptIDs = append(r.Reply.PromptIDs, ids.Draw(rt, "prompt")...)
			if ids := ids.Draw(rt, "ids"); len(ids) > 0 {
				r.Reply.TokenIDs = ids
			}
			if err := s.Append(ctx, r); err != nil {
				rt.Fatal(err)
			}
			all = append(all, r)
		}
		got, err := s.Calls(ctx, run.ID)
		if err != nil || len(got) != len(all) {
			rt.Fatalf("%d calls of %d: %v", len(got), len(all), err)
		}
		for i, want := range all {
			one, found, err := s.Recall(ctx, want.Key, want.Request.Digest(want.Model))
			if err != nil || !found {
				rt.Fatalf("call %d: %v %v", i, found, err)
			}
			for _, r := range []llm.Record{one, got[i]} {
				a, err1 := json.Marshal(want)
				b, err2 := json.Marshal(r)
				if err1 != nil || err2 != nil || string(a) != string(b) {
					rt.Fatalf("call %d:\n%s\n%s", i, a, b)
				}
				if r.Request.Digest(r.Model) != want.Request.Digest(want.Model) {
					rt.Fatalf("call %d has another digest", i)
				}
			}
		}
	})
	ok(t, s.Check(t.Context()))
	if e := examine(t, s.Path()); !e.Sound() {
		t.Errorf("%+v", e.Faults)
	}
}

// A talk of 200 turns takes the room of what was said, not of what was sent.
func TestALongTalkIsKeptOnce(t *testing.T) {
	s, ctx := openTest(t), t.Context()
	run := newRun(t, s)
	r := llm.Record{Key: llm.Key{Run: run.ID, Agent: "coder"}, Model: "p:m", Request: llm.Request{Messages: []llm.Message{say(llm.System, "begin")}}}
	const turns = 100
	for i := range turns {
		r.Key.Seq, r.Request.Append = i, i > 0
		r.Reply = llm.Reply{Text: fmt.Sprintf("reply %d", i), Stop: llm.StopEnd, TokenIDs: []int{i, i + 1, i + 2}, LogProbs: []float64{-1, -1, -1}, PromptIDs: append(append([]int{}, r.Reply.PromptIDs...), r.Reply.TokenIDs...)}
		ok(t, s.Append(ctx, r))
		r.Request.Messages = append(r.Request.Messages, r.Reply.Message(), say(llm.User, fmt.Sprintf("go on %d", i)))
	}
	var said, calls, longest int
	ok(t, s.read.QueryRow(`SELECT (SELECT count(*) FROM turns), (SELECT count(*) FROM calls), (SELECT max(size) FROM texts)`).Scan(&said, &calls, &longest))
	if said != 2*turns-1 || calls != turns || longest > 200 {
		t.Errorf("%d turns, %d calls, a text of %d bytes", said, calls, longest)
	}
	r.Key.Seq = turns - 1
	r.Request.Messages = r.Request.Messages[:len(r.Request.Messages)-2]
	recall(t, s, r)
	if all := must(s.Calls(ctx, run.ID))(t); len(all) != turns || len(all[turns-1].Request.Messages) != 2*turns-1 || len(all[turns-1].Reply.PromptIDs) != 3*(turns-1) {
		t.Errorf("%d calls", len(all))
	}
}

// What was said before calls were recorded is there afterwards.
func TestOldMessagesAreMoved(t *testing.T) {
	steps, err := migrations()
	ok(t, err)
	path := filepath.Join(t.TempDir(), FileName)
	s, err := open(t.Context(), path, steps[:4], true)
	ok(t, err)
	var run int64
	ok(t, s.inTx(t.Context(), func(tx *sql.Tx) error {
		r, err := s.createRun(t.Context(), tx, kw.Run{Task: "f", Status: kw.RunDone}, nil)
		run = r.ID
		for i, m := range []struct {
			round, seq  int
			agent, role string
			text        string
			cost        float64
		}{
			{0, 0, "coder", "system", "be brief", 0}, {0, 1, "coder", "user", "a kernel, please", 0}, {0, 2, "coder", "assistant", "here it is", 0.5},
			{0, 3, "judge", "user", "and now?", 0}, {0, 4, "judge", "assistant", "faster", 0.25},
			{1, 0, "coder", "user", "once more", 0}, {1, 1, "coder", "assistant", "here", 0}, {1, 2, "coder", "user", "and again", 0}, {1, 3, "coder", "assistant", "there", 0},
			{2, 0, "coder", "user", "unanswered", 0},
		} {
			text, perr := s.putText(t.Context(), tx, m.text, m.text)
			if err == nil {
				err = perr
			}
			_, xerr := tx.Exec(`INSERT INTO messages (run, idx, seq, agent, role, model, text, tokens_in, tokens_out, cost_usd, created) VALUES (?, ?, ?, ?, ?, 'm', ?, 3, 2, ?, ?)`,
				run, m.round, m.seq, m.agent, m.role, text, m.cost, i)
			if err == nil {
				err = xerr
			}
		}
		return err
	}))
	ok(t, s.Close())
	if e := examine(t, path); !e.Sound() || e.Version != 4 || e.Rows["messages"] != 10 {
		t.Errorf("%+v", e)
	}
	copied := filepath.Join(t.TempDir(), FileName)
	if out := must(Salvage(t.Context(), path, copied, quiet))(t); out.Kept["messages"] != 10 {
		t.Errorf("%+v", out)
	}
	for _, path := range []string{path, copied} {
		s, err = Open(path)
		ok(t, err)
		var talks []string
		for _, r := range must(s.Calls(t.Context(), run))(t) {
			talk := fmt.Sprintf("%d %s %d:", r.Key.Round, r.Key.Agent, r.Key.Seq)
			for _, m := range append(r.Request.Messages, r.Reply.Message()) {
				talk += fmt.Sprintf(" %s %q", m.Role, m.Text)
			}
			talks = append(talks, talk)
		}
		want := []string{
			`0 coder 0: system "be brief" user "a kernel, please" assistant "here it is"`, `0 judge 0: user "and now?" assistant "faster"`,
			`1 coder 0: user "once more" assistant "here"`, `1 coder 1: user "once more" assistant "here" user "and again" assistant "there"`,
		}
		if strings.Join(talks, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s", strings.Join(talks, "\n"))
		}
		if spent := must(s.Spend(t.Context(), run))(t); spent.Calls != 4 || spent.USD != 0.75 {
			t.Errorf("%+v", spent)
		}
		for _, words := range []string{"kernel please", "there", "unanswered"} {
			if hits := must(s.Search(t.Context(), words, 0))(t); len(hits) != 1 || hits[0].Kind != "message" {
				t.Errorf("%s: %+v", words, hits)
			}
		}
		ok(t, s.Close())
		if e := examine(t, path); !e.Sound() {
			t.Errorf("%+v", e.Faults)
		}
	}
}

// A salvage keeps what was paid, whatever of a talk is lost; and a call whose
// request is lost is still not paid for again.
func TestSalvagedCalls(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	s, err := Open(path)
	ok(t, err)
	run := must(s.CreateRun(t.Context(), kw.Run{Task: "f", Status: kw.RunDone}))(t)
	talk := talkOf(run.ID, 0)
	for _, r := range talk {
		ok(t, s.Append(t.Context(), r))
		must(s.Book(t.Context(), llm.Charge{Key: r.Key, Model: r.Model, Usage: r.Reply.Usage}))(t)
	}
	// The first call's request, and the last one's reply.
	_, err = s.write.Exec(`PRAGMA foreign_keys = 0; DELETE FROM texts WHERE id IN (SELECT text FROM turns WHERE role = 'system' UNION SELECT text FROM calls WHERE agent = 'judge')`)
	ok(t, err)
	ok(t, s.Close())
	to := filepath.Join(t.TempDir(), FileName)
	must(Salvage(t.Context(), path, to, quiet))(t)
	if e := examine(t, to); !e.Sound() {
		t.Errorf("%+v", e.Faults)
	}
	s, err = Open(to)
	ok(t, err)
	defer s.Close()
	for i, want := range talk {
		got, found, err := s.Recall(t.Context(), want.Key, want.Request.Digest(want.Model))
		ok(t, err)
		switch {
		case found != (i < 2):
			t.Errorf("call %d is found: %v", i, found)
		case found && (asJSON(t, got.Reply) != asJSON(t, want.Reply) || len(got.Request.Messages) != 0):
			t.Errorf("%s", asJSON(t, got))
		}
	}
	if spent := must(s.Spend(t.Context(), run.ID))(t); spent.Calls != 3 {
		t.Errorf("%+v", spent)
	}
}
