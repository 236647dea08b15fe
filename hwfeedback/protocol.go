package hwfeedback

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kernelwright/kernelwright"
)

// The protocol is in harness/kwharness/base, protocol.py and protocol.schema.json; the
// messages in testdata/protocol are tested from both sides.
const frameHeader = 4

var (
	protocolVersion = kernelwright.Shared.ProtocolVersion
	maxFrame        = kernelwright.Shared.MaxFrameBytes
	maxFDs          = kernelwright.Shared.MaxFDs
)

// errClosed says that the peer is gone.
var errClosed = errors.New("the peer closed the conversation")

// protocolError says that the peer broke the protocol, or that a message
// cannot be sent as it is.
type protocolError struct{ what string }

func (e *protocolError) Error() string { return e.what }

func protocolErrorf(format string, args ...any) error {
	return &protocolError{fmt.Sprintf(format, args...)}
}

// message is everything that can arrive: one envelope for the events of the
// fork server and for the replies of the referee.
type message struct {
	V    int    `json:"v"`
	Type string `json:"type"`
	ID   int64  `json:"id"`
	FDs  int    `json:"fds"`

	// ready
	Versions map[string]string `json:"versions"`
	// ready, spawned, exited, failed
	PID     int    `json:"pid"`
	Code    *int   `json:"code"`
	Signal  *int   `json:"signal"`
	Reason  string `json:"reason"`
	Log     string `json:"log"`
	Message string `json:"message"`
	// progress
	Stage string `json:"stage"`
	Note  string `json:"note"`
	// learned
	Learned learned `json:"learned"`
	// result, error
	Result json.RawMessage `json:"result"`
	Error  *remoteError    `json:"error"`
}

// remoteError is what the referee answers when it has no result. A
// candidate's faults are results, so it is about the reference ("invalid"),
// about us ("protocol"), about the machinery ("infrastructure"), about what
// this machine lacks ("missing"), or says that the device has too little memory
// for the task, which no candidate had taken ("no_room"), that another process
// was at work on it, no candidate's ("busy"), or that it does not work, which was
// met before any candidate's code had run ("ill").
type remoteError struct {
	Kind      string `json:"kind"`
	Message   string `json:"message"`
	Hint      string `json:"hint"`
	Traceback string `json:"traceback"`
}

const (
	kindNoRoom = "no_room"
	kindBusy   = "busy"
	kindFault  = "ill"
)

func (e *remoteError) Error() string { return e.Message }

// encode returns the frame of a message: any value whose JSON is an object
// with "v" and, where descriptors go along, "fds".
func encode(msg any) ([]byte, error) {
	body, err := json.Marshal(msg)
	if err != nil {
		return nil, protocolErrorf("message cannot be written as JSON: %v", err)
	}
	if len(body) > maxFrame {
		return nil, protocolErrorf("message of %d bytes is over the limit of %d", len(body), maxFrame)
	}
	frame := make([]byte, frameHeader, frameHeader+len(body))
	binary.BigEndian.PutUint32(frame, uint32(len(body)))
	return append(frame, body...), nil
}

// decode returns the message in the body of a frame. The peer may be broken:
// whatever the bytes are, the answer is a message or an error.
func decode(body []byte) (message, error) {
	var m message
	if len(body) > maxFrame {
		return m, protocolErrorf("frame over the size limit")
	}
	if !utf8.Valid(body) {
		return m, protocolErrorf("frame is not UTF-8")
	}
	// The version first: a later one may give our fields other types.
	var head struct {
		V json.RawMessage `json:"v"`
	}
	if err := json.Unmarshal(body, &head); err != nil {
		return m, protocolErrorf("frame is no JSON object: %v", err)
	}
	if string(head.V) != strconv.Itoa(protocolVersion) {
		return m, protocolErrorf("peer speaks version %.40q, expected %d", head.V, protocolVersion)
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return message{}, protocolErrorf("frame does not follow the schema: %v", err)
	}
	if m.FDs < 0 || m.FDs > maxFDs {
		return message{}, protocolErrorf("impossible number of descriptors: %d", m.FDs)
	}
	return m, nil
}

// channel is one end of a conversation. It owns its connection; one goroutine
// sends and one receives at a time. close may come from anywhere.
type channel struct{ conn *net.UnixConn }

// socketPair returns a channel and the socket of its peer, which is the
// caller's to pass on and close.
func socketPair() (*channel, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "channel"), os.NewFile(uintptr(fds[1]), "peer")
	c, err := channelOf(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return c, theirs, nil
}

// channelOf takes over a connected Unix stream socket.
func channelOf(f *os.File) (*channel, error) {
	defer f.Close() // FileConn duplicates it
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("take over a socket: %w", err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, errors.New("take over a socket: it is no Unix socket")
	}
	return &channel{unixConn}, nil
}

// send sends one message; the descriptors stay the caller's. The message must
// announce them as "fds".
func (c *channel) send(msg any, deadline time.Time, files ...*os.File) error {
	if len(files) > maxFDs {
		return protocolErrorf("%d descriptors in one message, limit %d", len(files), maxFDs)
	}
	frame, err := encode(msg)
	if err != nil {
		return err
	}
	if err := c.conn.SetWriteDeadline(deadline); err != nil {
		return channelError(err)
	}
	if len(files) > 0 {
		sent, err := c.sendRights(frame, files)
		if err != nil {
			return channelError(err)
		}
		frame = frame[sent:]
	}
	if len(frame) == 0 { // writing nothing would fail where the peer has answered and gone
		return nil
	}
	_, err = c.conn.Write(frame)
	return channelError(err)
}

// sendRights sends the descriptors with the first bytes of the frame. It
// takes the numbers without os.File.Fd, which would make the files blocking.
func (c *channel) sendRights(frame []byte, files []*os.File) (sent int, err error) {
	fds := make([]int, len(files))
	var withFD func(i int) error
	withFD = func(i int) error {
		if i == len(files) {
			sent, _, err = c.conn.WriteMsgUnix(frame, unix.UnixRights(fds...), nil)
			return err
		}
		raw, err := files[i].SyscallConn()
		if err != nil {
			return err
		}
		var inner error
		if err := raw.Control(func(fd uintptr) {
			fds[i] = int(fd)
			inner = withFD(i + 1)
		}); err != nil {
			return err
		}
		return inner
	}
	return sent, withFD(0)
}

// recv returns the next message and its descriptors, which become the
// caller's. A zero deadline waits for ever. It does not watch the context:
// whoever has interrupt called at the context's end gets its cause here even
// when the call came before the deadline was set. After any error the channel
// is of no more use.
func (c *channel) recv(ctx context.Context, deadline time.Time) (message, []*os.File, error) {
	if err := c.conn.SetReadDeadline(deadline); err != nil {
		return message{}, nil, channelError(err)
	}
	if ctx.Err() != nil {
		return message{}, nil, context.Cause(ctx)
	}
	var files []*os.File
	m, err := func() (message, error) {
		header := make([]byte, frameHeader)
		if err := c.fill(header, &files); err != nil {
			return message{}, err
		}
		size := binary.BigEndian.Uint32(header)
		if uint64(size) > uint64(maxFrame) {
			return message{}, protocolErrorf("frame over the size limit")
		}
		body, err := c.body(int(size), &files)
		if err != nil {
			return message{}, err
		}
		m, err := decode(body)
		if err == nil && m.FDs != len(files) {
			err = protocolErrorf("%d descriptors arrived, %d were announced", len(files), m.FDs)
		}
		return m, err
	}()
	if err != nil {
		closeAll(files)
		return message{}, nil, err
	}
	return m, files, nil
}

// body reads in pieces, so that a peer has to send what it makes us hold.
func (c *channel) body(size int, files *[]*os.File) ([]byte, error) {
	const piece = 1 << 20
	var body []byte
	for len(body) < size {
		at := len(body)
		body = append(body, make([]byte, min(piece, size-at))...)
		if err := c.fill(body[at:], files); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// fill reads exactly len(b) bytes, never more, so that descriptors stay with
// their frame.
func (c *channel) fill(b []byte, files *[]*os.File) error {
	oob := make([]byte, unix.CmsgSpace(maxFDs*4))
	for len(b) > 0 {
		n, oobn, flags, _, err := c.conn.ReadMsgUnix(b, oob)
		if err != nil {
			return channelError(err)
		}
		rights, err := parseRights(oob[:oobn])
		*files = append(*files, rights...)
		if err != nil {
			return err
		}
		if flags&unix.MSG_CTRUNC != 0 || len(*files) > maxFDs {
			return protocolErrorf("too many descriptors in one message")
		}
		if n == 0 {
			return errClosed
		}
		b = b[n:]
	}
	return nil
}

func parseRights(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	controls, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, protocolErrorf("bad control message: %v", err)
	}
	var files []*os.File
	for i := range controls {
		if controls[i].Header.Level != unix.SOL_SOCKET || controls[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&controls[i])
		if err != nil {
			return files, protocolErrorf("bad control message: %v", err)
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// close may be called more than once.
func (c *channel) close() { _ = c.conn.Close() }

// interrupt makes a receive or send that waits return at once.
func (c *channel) interrupt() { _ = c.conn.SetDeadline(time.Unix(1, 0)) }

// channelError tells a peer that is gone from everything else.
func channelError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
		return errClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		return os.ErrDeadlineExceeded
	}
	return fmt.Errorf("talk to the harness: %w", err)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
