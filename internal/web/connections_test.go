package web

import (
	"errors"
	"net"
	"testing"
)

// pipes is a listener of connections that are there.
type pipes struct {
	net.Listener
	accepted chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	p.accepted <- struct{}{}
	c, _ := net.Pipe()
	return c, nil
}

func (pipes) Close() error { return nil }

// So many connections are taken at once; one that ends makes room, however often it is
// closed, and a listener that is closed is waited for by nobody.
func TestLimitConnections(t *testing.T) {
	p := pipes{accepted: make(chan struct{}, 1000)}
	const most = 20
	l := LimitConnections(p, most)
	var first net.Conn
	for range most {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		first = c
	}
	next := make(chan error)
	accept := func() { _, err := l.Accept(); next <- err }
	go accept()
	for range 3 {
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-next; err != nil {
		t.Error(err)
	}
	go accept() // only one place was free
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-next; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if n := len(p.accepted); n != most+1 {
		t.Errorf("%d were accepted", n)
	}
}
