package hwfeedback

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func inTime() time.Time { return time.Now().Add(hangs) }

// pair returns both ends as channels.
func pair(t *testing.T) (*channel, *channel) {
	t.Helper()
	a, file, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	b, err := channelOf(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.close(); b.close() })
	return a, b
}

func number(n int) *int { return &n }

// goldenReceived is what this side makes of the messages that it receives.
var goldenReceived = map[string]message{
	"ready":            {Type: "ready", PID: 4711, Versions: map[string]string{"python": "3.11.7", "torch": "2.11.0+cu130"}},
	"spawned":          {Type: "spawned", ID: 7, PID: 4242},
	"failed":           {Type: "failed", ID: 7, Message: `this machine gives no pid namespace: set sandbox = "weak" to go on without`},
	"exited":           {Type: "exited", ID: 7, PID: 4242, Code: number(0), Reason: "exited"},
	"exited_by_signal": {Type: "exited", ID: 7, PID: 4242, Signal: number(9), Reason: "killed", Log: "café ✓\n"},
	"alone":            {Type: "alone", ID: 4},
	"progress":         {Type: "progress", ID: 2, Stage: "verify", Note: "family scaled_up, seed 3 of 5"},
	"learned":          {Type: "learned", ID: 2, Learned: learned{Calibration: json.RawMessage(`{"version":10}`), Baselines: json.RawMessage(`{"eager":{"window_ns":1000000}}`)}},
	"result":           {Type: "result", ID: 1, Result: json.RawMessage(`{"normalised_hash":"00ff","problems":["line 1: not valid Python: invalid syntax"]}`)},
	"error": {Type: "error", ID: 2, Error: &remoteError{Kind: "invalid", Message: "Model cannot be constructed",
		Hint: "get_init_inputs() must return its arguments", Traceback: "Traceback (most recent call last):\n"}},
}

// request is what arrives at the referee: a body in its envelope.
type request[Body any] struct {
	V    int    `json:"v"`
	Type string `json:"type"`
	ID   int64  `json:"id"`
	FDs  int    `json:"fds"`
	Body Body
}

// UnmarshalJSON lays envelope and body side by side, as they are on the wire.
func (r *request[Body]) UnmarshalJSON(b []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(b, &fields); err != nil {
		return err
	}
	for name, into := range map[string]any{"v": &r.V, "type": &r.Type, "id": &r.ID, "fds": &r.FDs} {
		if raw, ok := fields[name]; ok {
			if err := json.Unmarshal(raw, into); err != nil {
				return err
			}
		}
		delete(fields, name)
	}
	rest, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(rest))
	d.DisallowUnknownFields()
	return d.Decode(&r.Body)
}

// MarshalJSON is envelope, by which every request leaves.
func (r request[Body]) MarshalJSON() ([]byte, error) {
	return envelope(r.Type, r.ID, r.Body, r.FDs)
}

// reply is a result that holds a type of ours.
type reply[Result any] struct {
	V      int    `json:"v"`
	Type   string `json:"type"`
	ID     int64  `json:"id"`
	Result Result `json:"result"`
}

// golden names the type that each golden message has on this side.
var golden = map[string]func() any{
	"error":            func() any { return &message{} },
	"evaluate":         func() any { return &request[evaluateBody]{} },
	"exited":           func() any { return &message{} },
	"exited_by_signal": func() any { return &message{} },
	"failed":           func() any { return &message{} },
	"inspect":          func() any { return &request[inspectBody]{} },
	"learned":          func() any { return &message{} },
	"alone":            func() any { return &killRequest{} }, // of the same fields
	"given":            func() any { return &given{} },
	"kill":             func() any { return &killRequest{} },
	"rest":             func() any { return &restRequest{} },
	"parse":            func() any { return &request[parseBody]{} },
	"progress":         func() any { return &message{} },
	"ready":            func() any { return &message{} },
	"result": func() any {
		return &reply[struct {
			parsed
			NormalisedHash string   `json:"normalised_hash"` // the referee's own, as the next
			Problems       []string `json:"problems"`
		}]{}
	},
	"result_evaluate": func() any { return &reply[evaluateReply]{} },
	"spawn_referee":   func() any { return &spawnRequest{} },
	"spawned": func() any {
		return &struct {
			message
			Mode    string   `json:"mode"` // for those who spawn workers
			Missing []string `json:"missing"`
		}{}
	},
}

// among are messages of the Python processes to each other: they have no type
// here, and only the frame's own fields are looked at.
var among = []string{"left", "log", "log_request", "ping", "pong", "spawn_worker", "start", "taken"}

// Each golden message is read into the type that it has here, which must know
// every field, and written again to the same JSON.
func TestGoldenMessages(t *testing.T) {
	paths, err := filepath.Glob("testdata/protocol/*.json")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range paths {
		name := strings.TrimSuffix(filepath.Base(p), ".json")
		seen[name] = true
		t.Run(name, func(t *testing.T) {
			content, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			// One decoder reads every frame.
			got, err := decode(content)
			if err != nil {
				t.Fatal(err)
			}
			if want, ok := goldenReceived[name]; ok {
				want.V = protocolVersion
				got.Result = compact(got.Result)
				got.Learned = learned{Calibration: compact(got.Learned.Calibration), Baselines: compact(got.Learned.Baselines)}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("got  %+v\nwant %+v", got, want)
				}
			}
			if slices.Contains(among, name) {
				if got.V != protocolVersion || got.Type == "" {
					t.Errorf("got %+v", got)
				}
				return
			}
			typed, ok := golden[name]
			if !ok {
				t.Fatal("no type of this side is named for it")
			}
			into := typed()
			strictly(t, name, content, into)
			frame, err := encode(into)
			if err != nil {
				t.Fatal(err)
			}
			sameJSON(t, frame[frameHeader:], content)
		})
	}
	for name := range golden {
		if !seen[name] {
			t.Errorf("there is no golden message %s", name)
		}
	}
	for _, name := range []string{"parse", "inspect", "evaluate"} {
		if !seen[name] {
			t.Errorf("there is no golden request %s", name)
		}
	}
}

// What an Evaluator says is what the golden requests say.
func TestGoldenRequestsAreWhatIsSent(t *testing.T) {
	for name, sent := range map[string]any{
		"spawn_referee": spawnRequest{1, "spawn", 1, "referee", map[string]any{}, map[string]any{"cache_dir": "/var/lib/kernelwright/cache"}, 1},
		"kill":          killRequest{1, "kill", 7},
		"rest":          restRequest{1, "rest", 1, 1},
		"parse":         request[parseBody]{1, "parse", 1, 0, parseBody{"import torch\n", "reference", "strict"}},
		"inspect": request[inspectBody]{1, "inspect", 2, 1, inspectBody{"softmax", "import torch\n", 60,
			workplace{"cpu", 2, "strict", "/var/lib/kernelwright/cache", nil}}},
	} {
		content, err := os.ReadFile(filepath.Join("testdata", "protocol", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		frame, err := encode(sent)
		if err != nil {
			t.Fatal(err)
		}
		sameJSON(t, frame[frameHeader:], content)
	}
}

// sameJSON compares what was written with what was read. A field that only the
// written has must be empty: one type stands for several messages.
func sameJSON(t *testing.T, written, read []byte) {
	t.Helper()
	var a, b any
	if err := errors.Join(json.Unmarshal(written, &a), json.Unmarshal(read, &b)); err != nil {
		t.Fatal(err)
	}
	if where := differing("", a, b); where != "" {
		t.Errorf("%s differs: wrote %s\nread %s", where, written, read)
	}
}

func differing(path string, written, read any) string {
	w, wok := written.(map[string]any)
	r, rok := read.(map[string]any)
	if !wok || !rok {
		if list, ok := read.([]any); ok {
			other, ok := written.([]any)
			if !ok || len(other) != len(list) {
				return path
			}
			for i := range list {
				if where := differing(fmt.Sprintf("%s[%d]", path, i), other[i], list[i]); where != "" {
					return where
				}
			}
			return ""
		}
		if reflect.DeepEqual(written, read) {
			return ""
		}
		return path
	}
	for name := range w {
		if _, ok := r[name]; !ok && !empty(w[name]) {
			return path + "." + name
		}
	}
	for name := range r {
		if _, ok := w[name]; !ok && !empty(r[name]) {
			return path + "." + name
		}
		if _, ok := w[name]; ok {
			if where := differing(path+"."+name, w[name], r[name]); where != "" {
				return where
			}
		}
	}
	return ""
}

// empty reports whether a value says nothing: null, zero, or only such.
func empty(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, inner := range v {
			if !empty(inner) {
				return false
			}
		}
		return true
	case []any:
		return len(v) == 0
	}
	return v == nil || reflect.ValueOf(v).IsZero()
}

func TestSendAndReceive(t *testing.T) {
	a, b := pair(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("through a descriptor"); err != nil {
		t.Fatal(err)
	}
	if err := a.send(map[string]any{"v": 1, "type": "result", "id": 1, "fds": 2, "result": map[string]any{}}, inTime(), f, f); err != nil {
		t.Fatal(err)
	}
	if err := a.send(map[string]any{"v": 1, "type": "progress", "id": 1, "note": "é"}, inTime()); err != nil {
		t.Fatal(err)
	}
	m, files, err := b.recv(context.Background(), inTime())
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(files)
	if m.Type != "result" || len(files) != 2 {
		t.Fatalf("got %+v with %d files", m, len(files))
	}
	content := make([]byte, 20)
	if _, err := files[1].ReadAt(content, 0); err != nil || string(content) != "through a descriptor" {
		t.Errorf("read %q, %v", content, err)
	}
	m, files, err = b.recv(context.Background(), inTime())
	if err != nil || m.Note != "é" || len(files) != 0 {
		t.Errorf("got %+v, %d files, %v", m, len(files), err)
	}
	a.close()
	if _, _, err := b.recv(context.Background(), inTime()); !errors.Is(err, errClosed) {
		t.Errorf("got %v, want closed", err)
	}
	if err := b.send(map[string]any{"v": 1}, inTime()); !errors.Is(err, errClosed) {
		t.Errorf("got %v, want closed", err)
	}
}

func TestLargeMessage(t *testing.T) {
	a, b := pair(t)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	note := strings.Repeat("kernel", 1<<20)
	sent := make(chan error, 1)
	go func() {
		sent <- a.send(map[string]any{"v": 1, "type": "progress", "fds": 1, "note": note}, inTime(), f)
	}()
	m, files, err := b.recv(context.Background(), inTime())
	if err != nil || m.Note != note || len(files) != 1 {
		t.Errorf("got %d bytes, %d files, %v", len(m.Note), len(files), err)
	}
	closeAll(files)
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if err := a.send(map[string]any{"v": 1, "note": strings.Repeat("x", maxFrame)}, inTime()); err == nil {
		t.Error("a message over the limit was sent")
	}
}

func TestReceiveRefuses(t *testing.T) {
	frame := func(body string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	for name, data := range map[string][]byte{
		"oversize":      {0xff, 0xff, 0xff, 0xff},
		"not json":      frame("hello"),
		"empty":         frame(""),
		"list":          frame("[1]"),
		"null":          frame("null"),
		"no version":    frame(`{"type":"result"}`),
		"later version": frame(`{"v":2,"type":["result"]}`),
		"float version": frame(`{"v":1.0}`),
		"not utf-8":     frame("{\"v\":1,\"type\":\"\xff\"}"),
		"announced fds": frame(`{"v":1,"fds":1}`),
		"negative fds":  frame(`{"v":1,"fds":-1}`),
		"wrong types":   frame(`{"v":1,"type":3}`),
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			if _, err := a.conn.Write(data); err != nil {
				t.Fatal(err)
			}
			var bad *protocolError
			if m, _, err := b.recv(context.Background(), inTime()); !errors.As(err, &bad) {
				t.Errorf("got %+v, %v", m, err)
			}
		})
	}
}

func TestUnannouncedDescriptorsAreClosed(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := a.send(map[string]any{"v": 1}, inTime(), w); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, _, err := b.recv(context.Background(), inTime()); err == nil {
		t.Fatal("accepted")
	}
	if err := r.SetReadDeadline(inTime()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the received end is still open: %v", err)
	}
}

func TestReceiveEndsInTime(t *testing.T) {
	_, b := pair(t)
	if _, _, err := b.recv(context.Background(), time.Now().Add(10*time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("why")
	cancel(why)
	if _, _, err := b.recv(ctx, time.Time{}); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

func TestEnvelope(t *testing.T) {
	for _, tt := range []struct {
		body any
		fds  int
		want string
	}{
		{map[string]any{"source": "x"}, 1, `{"v":1,"id":3,"type":"parse","fds":1,"source":"x"}`},
		{map[string]any{}, 0, `{"v":1,"id":3,"type":"parse"}`},
		{nil, 0, `{"v":1,"id":3,"type":"parse"}`},
	} {
		got, err := envelope("parse", 3, tt.body, tt.fds)
		if err != nil || string(got) != tt.want {
			t.Errorf("got %s, %v", got, err)
		}
	}
	if _, err := envelope("parse", 1, map[string]any{"x": func() {}}, 0); err == nil {
		t.Error("what has no JSON was accepted")
	}
}

func FuzzDecode(f *testing.F) {
	paths, _ := filepath.Glob("testdata/protocol/*.json")
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"v":1,"type":"error","id":1,"error":{"kind":"infrastructure"}}`))
	f.Add([]byte(`{"v":1,"V":2,"fds":65}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := decode(body)
		if err != nil {
			if !reflect.DeepEqual(m, message{}) {
				t.Fatalf("a refused frame left %+v", m)
			}
			return
		}
		if m.FDs < 0 || m.FDs > maxFDs || m.V != protocolVersion {
			t.Fatalf("impossible message %+v from %q", m, body)
		}
		// What was accepted can be said again and means the same.
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		n, err := decode(again)
		if err != nil || n.Type != m.Type || n.ID != m.ID || n.Note != m.Note || !bytes.Equal(compact(n.Result), compact(m.Result)) {
			t.Fatalf("%s does not survive: %+v, %v", again, n, err)
		}
	})
}

func compact(b []byte) []byte {
	if len(b) == 0 || string(b) == "null" {
		return nil
	}
	var v any
	if json.Unmarshal(b, &v) != nil {
		return b
	}
	out, _ := json.Marshal(v)
	return out
}
