package hwfeedback

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func inTime() time.Time { return time.Now().Add(10 * time.Second) }

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
	"ready":            {Type: "ready", Versions: map[string]string{"python": "3.11.7", "torch": "2.11.0+cu130"}},
	"spawned":          {Type: "spawned", ID: 7, PID: 4242},
	"failed":           {Type: "failed", ID: 7, Message: `this machine gives no pid namespace: set sandbox = "weak" to go on without`},
	"exited":           {Type: "exited", ID: 7, PID: 4242, Code: number(0), Reason: "exited"},
	"exited_by_signal": {Type: "exited", ID: 7, PID: 4242, Signal: number(9), Reason: "killed", Log: "café ✓\n"},
	"progress":         {Type: "progress", ID: 2, Stage: "verify", Note: "family scaled_up, seed 3 of 5"},
	"result":           {Type: "result", ID: 1, Result: json.RawMessage(`{"normalised_hash":"00ff","problems":["line 1: not valid Python: invalid syntax"]}`)},
	"error": {Type: "error", ID: 2, Error: &remoteError{Kind: "invalid", Message: "Model cannot be constructed",
		Hint: "get_init_inputs() must return its arguments", Traceback: "Traceback (most recent call last):\n"}},
}

// goldenSent is how this side says the messages that it sends.
var goldenSent = map[string]func() (any, error){
	"spawn_referee": func() (any, error) {
		return spawnRequest{1, "spawn", 1, "referee", map[string]any{}, map[string]any{"cache_dir": "/var/lib/kernelwright/cache"}, 1}, nil
	},
	"kill": func() (any, error) { return killRequest{1, "kill", 7}, nil },
	"parse": func() (any, error) {
		return envelope("parse", 1, map[string]any{"source": "import torch\n", "what": "reference"}, 0)
	},
	"inspect": func() (any, error) {
		return envelope("inspect", 2, map[string]any{"name": "softmax", "source": "import torch\n", "timeout_s": time.Minute.Seconds()}, 0)
	},
}

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
			// Messages between the Python processes are read here all the same: one decoder reads every frame.
			got, err := decode(compact(content))
			if err != nil {
				t.Fatal(err)
			}
			if want, ok := goldenReceived[name]; ok {
				want.V = protocolVersion
				if !reflect.DeepEqual(got, want) {
					t.Errorf("got  %+v\nwant %+v", got, want)
				}
			}
			if make, ok := goldenSent[name]; ok {
				msg, err := make()
				if err != nil {
					t.Fatal(err)
				}
				frame, err := encode(msg)
				if err != nil {
					t.Fatal(err)
				}
				if body := frame[frameHeader:]; !bytes.Equal(compact(body), compact(content)) {
					t.Errorf("sent %s\nwant %s", body, content)
				}
			}
		})
	}
	for name := range goldenReceived {
		if !seen[name] {
			t.Errorf("there is no golden message %s", name)
		}
	}
	for name := range goldenSent {
		if !seen[name] {
			t.Errorf("there is no golden message %s", name)
		}
	}
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
