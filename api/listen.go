package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/kernelwright/kernelwright/internal/outward"
	"github.com/kernelwright/kernelwright/store"
)

const (
	eventsPath = "/api/v1/events"
	// maxListeners may listen at once.
	maxListeners = 256
	// maxFrames wait for a listener that reads slowly; with one more it is dropped.
	maxFrames = 512
	// pageOfEvents are read from the record at once.
	pageOfEvents = 500
	// lookForEvents is how often the record is asked for new events while anybody listens:
	// other processes write to it, too.
	lookForEvents = 25 * time.Millisecond
	// heartbeat is how often a listener gets something, and so where to go on from.
	heartbeat = 15 * time.Second
	// sampling is how often devices are looked at while anybody listens.
	sampling = 2 * time.Second
	// waitForDevices is how long a page waits for how devices are.
	waitForDevices = 50 * time.Millisecond
	// frameTime is how long writing to a listener may take.
	frameTime = 10 * time.Second
	// comeBack is after how many milliseconds a listener that was dropped comes back.
	comeBack = 1000
)

// Kinds of events that are not recorded: they have no id, unless they say where a
// listener is.
const (
	EventReady    = "ready"
	EventGap      = "gap"
	EventProgress = "progress"
	EventStep     = "step"
	EventDevice   = "device"
)

var eventKinds = []string{
	store.EventRun, store.EventRound, store.EventCertificate, store.EventQueue, store.EventStage, store.EventPromotion, store.EventNight, EventProgress, EventStep, EventDevice,
}

// Sample is how a device is just now; what is nil is not known.
type Sample struct {
	Device       string   `json:"device" doc:"cpu, cuda:0."`
	Name         string   `json:"name"`
	Load         *float64 `json:"load" doc:"From 0 to 1."`
	MemoryUsed   *int64   `json:"memory_used_bytes"`
	Memory       *int64   `json:"memory_bytes"`
	TemperatureC *float64 `json:"temperature_c"`
	SMClockMHz   *float64 `json:"sm_clock_mhz" doc:"Of a GPU's multiprocessors, or a CPU's cores."`
	MemClockMHz  *float64 `json:"memory_clock_mhz"`
	PowerW       *float64 `json:"power_w"`
}

// Progress is what goes on within a round.
type Progress struct {
	Run   int64  `json:"run"`
	Round int    `json:"round"`
	Step  string `json:"step" doc:"As forge names it."`
}

// Step is a step of training.
type Step struct {
	Pipeline int64          `json:"pipeline"`
	Stage    string         `json:"stage"`
	Part     string         `json:"part"`
	Step     int            `json:"step"`
	Steps    int            `json:"steps"`
	Metrics  map[string]any `json:"metrics"`
	Note     string         `json:"note"`
}

// hub gives what happens to those who listen. It reads the record while anybody does,
// and waits for nobody.
type hub struct {
	store  *store.Store
	sample func(context.Context) []Sample // nil: of no device
	life   context.Context
	end    context.CancelFunc
	wait   sync.WaitGroup

	mu        sync.Mutex
	latest    []Sample      // of the last look at devices
	looked    time.Time     // when that was
	looking   chan struct{} // closed once a look that goes on is over; nil: none does
	listeners map[*listener]bool
	position  int64 // the last recorded event that listeners were given
	looks     bool  // its goroutines run
	dropped   int64 // listeners, ever
}

// listener is somebody who listens.
type listener struct {
	run    int64    // 0: to all
	kinds  []string // nil: to all
	frames chan []byte
}

func (l *listener) hears(kind string, run int64) bool {
	return (l.run == 0 || l.run == run) && (len(l.kinds) == 0 || slices.Contains(l.kinds, kind))
}

func newHub(s *store.Store, sample func(context.Context) []Sample) *hub {
	h := &hub{store: s, sample: sample, listeners: map[*listener]bool{}}
	h.life, h.end = context.WithCancel(context.Background())
	return h
}

// close drops all who listen, and those who come.
func (h *hub) close() {
	h.end()
	h.mu.Lock()
	for l := range h.listeners {
		h.drop(l)
	}
	h.mu.Unlock()
	h.wait.Wait()
}

// join has a listener get what is recorded after the position that it returns.
func (h *hub) join(ctx context.Context, l *listener) (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life.Err() != nil {
		return 0, &Problem{Text: "the daemon is stopping", Hint: "come back when it runs again", Code: http.StatusServiceUnavailable, retry: true}
	}
	if !h.looks {
		_, newest, err := h.store.EventBounds(ctx)
		if err != nil {
			return 0, err
		}
		h.position, h.looks = newest, true
		h.wait.Go(h.look)
	}
	h.listeners[l] = true
	return h.position, nil
}

// drop takes a listener away, with h.mu held. What it was given it may still read.
func (h *hub) drop(l *listener) {
	if h.listeners[l] {
		delete(h.listeners, l)
		close(l.frames)
	}
}

func (h *hub) leave(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(l)
}

// look gives what is recorded, until nobody listens any more.
func (h *hub) look() {
	tick := time.NewTicker(lookForEvents)
	defer tick.Stop()
	var samples sync.WaitGroup
	defer samples.Wait()
	sampled := make(chan []Sample, 1)
	asking := false
	beat, sample := time.Now(), time.Time{}
	for {
		select {
		case <-h.life.Done():
		case s := <-sampled:
			asking = false
			for _, one := range s {
				h.tell(EventDevice, 0, one)
			}
			continue
		case <-tick.C:
		}
		h.recorded()
		now := time.Now()
		if h.sample != nil && !asking && now.Sub(sample) >= sampling {
			asking, sample = true, now
			samples.Go(func() { sampled <- h.see() }) // a driver may take its time
		}
		if now.Sub(beat) >= heartbeat {
			beat = now
			h.beat()
		}
		if h.over() {
			return
		}
	}
}

// see looks at the devices.
func (h *hub) see() []Sample {
	found := h.sample(h.life)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.latest, h.looked = found, time.Now()
	return found
}

// devices is how the devices are. Where that is older than what listeners are told, it is
// looked at anew, and waited for a moment.
func (h *hub) devices(ctx context.Context) []Sample {
	h.mu.Lock()
	latest, again := h.latest, h.sample != nil && h.life.Err() == nil && time.Since(h.looked) >= sampling
	if again && h.looking == nil {
		done := make(chan struct{})
		h.looking = done
		h.wait.Go(func() {
			defer close(done)
			h.see()
			h.mu.Lock()
			defer h.mu.Unlock()
			h.looking = nil
		})
	}
	looking := h.looking
	h.mu.Unlock()
	if !again {
		return latest
	}
	select {
	case <-looking:
	case <-time.After(waitForDevices):
	case <-ctx.Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.latest
}

// over reports whether nobody listens; then the next who does begins anew.
func (h *hub) over() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.listeners) == 0 || h.life.Err() != nil {
		h.looks = false
		return true
	}
	return false
}

// recorded gives what was recorded since it was called last. What cannot be read now is
// read the next time.
func (h *hub) recorded() {
	for h.life.Err() == nil {
		found, err := h.store.Events(h.life, h.position, 0, nil, pageOfEvents)
		if err != nil || len(found) == 0 {
			return
		}
		h.mu.Lock()
		for _, e := range found {
			h.give(e.Kind, e.Run, recordedFrame(e))
			h.position = e.ID
		}
		h.mu.Unlock()
		if len(found) < pageOfEvents {
			return
		}
	}
}

// beat gives everybody where to go on from.
func (h *hub) beat() {
	h.mu.Lock()
	defer h.mu.Unlock()
	frame := fmt.Appendf(nil, ": still here\nid: %d\n\n", h.position)
	for l := range h.listeners {
		h.send(l, frame)
	}
}

// tell gives what is not recorded. It waits for nobody.
func (h *hub) tell(kind string, run int64, data any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.listeners) == 0 {
		return
	}
	b, err := json.Marshal(outward.Of(data))
	if err != nil { // a metric that is no number, say: the next one comes soon
		return
	}
	h.give(kind, run, frameOf(0, kind, time.Now().UnixMilli(), b))
}

// give gives a frame to those who want it, with h.mu held.
func (h *hub) give(kind string, run int64, frame []byte) {
	for l := range h.listeners {
		if l.hears(kind, run) {
			h.send(l, frame)
		}
	}
}

// send gives a listener a frame, or drops it where it reads too slowly, with h.mu held.
func (h *hub) send(l *listener, frame []byte) {
	select {
	case l.frames <- frame:
	default:
		h.dropped++
		h.drop(l)
	}
}

func (h *hub) count() (listeners int, dropped int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.listeners), h.dropped
}

func recordedFrame(e store.Event) []byte { return frameOf(e.ID, e.Kind, e.AtMS, e.Detail) }

// frameOf writes an event: html.spec.whatwg.org, section 9.2.6. The data are an object,
// on one line.
func frameOf(id int64, kind string, atMS int64, data []byte) []byte {
	var b bytes.Buffer
	if id != 0 {
		fmt.Fprintf(&b, "id: %d\n", id)
	}
	at := time.UnixMilli(atMS).UTC().Format("2006-01-02T15:04:05.000Z")
	fmt.Fprintf(&b, "event: %s\ndata: {\"at\":%q", kind, at)
	if rest := bytes.TrimPrefix(data, []byte("{")); len(rest) > 1 {
		b.WriteByte(',')
		b.Write(rest)
	} else {
		b.WriteByte('}')
	}
	b.WriteString("\n\n")
	return b.Bytes()
}

// Listening says what somebody listens to.
type Listening struct {
	Run   int64    `query:"run" minimum:"1" doc:"Of this run alone."`
	Kinds []string `query:"kinds,explode" nullable:"false" maxItems:"20" doc:"Of these kinds alone; given again, or separated by commas."`
	After string   `query:"after" maxLength:"20" doc:"Go on after the event of this id."`
	Last  string   `header:"Last-Event-ID" maxLength:"20" doc:"The same; browsers send it."`
}

// after is the id to go on from; -1: from now on.
func (in *Listening) after() (int64, error) {
	text := in.Last
	if text == "" {
		text = in.After
	}
	if text == "" {
		return -1, nil
	}
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 0 {
		return 0, bad("query.after: there is no event of such an id", "give the id of the last event, or leave it out")
	}
	return id, nil
}

// events has the route of what happens.
func (a *API) events() {
	op := operation(http.MethodGet, eventsPath, "What happens, as it happens: server-sent events.")
	op.Responses = map[string]*huma.Response{"200": {Description: "A stream that does not end.", Content: map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{Type: huma.TypeString}}}}}
	huma.Register(a.huma, op, func(ctx context.Context, in *Listening) (*huma.StreamResponse, error) {
		after, err := in.after()
		if err != nil {
			return nil, err
		}
		l := &listener{run: in.Run, frames: make(chan []byte, maxFrames)}
		for kind := range strings.SplitSeq(strings.Join(in.Kinds, ","), ",") {
			if kind == "" {
				continue
			}
			if !slices.Contains(eventKinds, kind) {
				return nil, bad("query.kinds: there are no such events", "they are "+strings.Join(eventKinds, ", "))
			}
			l.kinds = append(l.kinds, kind)
		}
		position, err := a.hub.join(ctx, l)
		if err != nil {
			return nil, a.problem(ctx, err)
		}
		return &huma.StreamResponse{Body: func(c huma.Context) {
			defer a.hub.leave(l)
			r, w := humago.Unwrap(c)
			s := &stream{w: w, control: http.NewResponseController(w)}
			if r.Method == http.MethodHead {
				s.begin()
				return
			}
			if err := a.catchUp(r.Context(), s, l, after, position); err == nil {
				s.follow(r.Context(), l)
			}
		}}, nil
	})
}

// catchUp writes where a listener is, and what was recorded from there to a position.
func (a *API) catchUp(ctx context.Context, s *stream, l *listener, after, position int64) error {
	oldest, newest, err := a.o.Store.EventBounds(ctx)
	if err != nil {
		return err
	}
	paused, err := a.o.Store.QueuePaused(ctx)
	if err != nil {
		return err
	}
	s.begin()
	from, gap := after, false
	switch {
	case after < 0:
		from = position
	case after > newest: // of another record
		from, gap = position, true
	case after < oldest-1:
		from, gap = oldest-1, true
	}
	data, err := json.Marshal(map[string]any{"version": a.o.Version, "paused": paused})
	if err != nil {
		return err
	}
	now := time.Now().UnixMilli()
	frames := [][]byte{frameOf(max(from, 0), EventReady, now, data)}
	if gap {
		frames = append(frames, frameOf(max(from, 0), EventGap, now, fmt.Appendf(nil, `{"oldest":%d}`, oldest)))
	}
	if err := s.write(frames...); err != nil {
		return err
	}
	for from < position {
		found, err := a.o.Store.Events(ctx, from, l.run, l.kinds, pageOfEvents)
		if err != nil || len(found) == 0 {
			return err
		}
		frames = frames[:0]
		for _, e := range found {
			if e.ID <= position {
				frames = append(frames, recordedFrame(e))
			}
			from = e.ID
		}
		if err := s.write(frames...); err != nil {
			return err
		}
	}
	return nil
}

// stream is a connection to a listener.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

// begin begins the answer. Its reader may be silent for as long as it likes.
func (s *stream) begin() {
	_ = s.control.SetReadDeadline(time.Time{}) // a recorder in a test has none
	header := s.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // a proxy's buffer would hold it back
	s.w.WriteHeader(http.StatusOK)
	_, _ = fmt.Fprintf(s.w, "retry: %d\n\n", comeBack)
}

// write writes frames, in the time that there is for it.
func (s *stream) write(frames ...[]byte) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(frameTime))
	for _, f := range frames {
		if _, err := s.w.Write(f); err != nil {
			return err
		}
	}
	return s.control.Flush()
}

// follow writes what a listener is given, until it is dropped or goes away.
func (s *stream) follow(ctx context.Context, l *listener) {
	for {
		select {
		case <-ctx.Done():
			return
		case frame, there := <-l.frames:
			frames := [][]byte{frame}
			for there && len(frames) < maxFrames && len(l.frames) > 0 {
				if frame, there = <-l.frames; there {
					frames = append(frames, frame)
				}
			}
			if len(frames[0]) > 0 && s.write(frames...) != nil || !there {
				return
			}
		}
	}
}
