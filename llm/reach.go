package llm

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/url"
	"time"
)

// reachTimeout is how long a server may take to accept a connection.
const reachTimeout = 5 * time.Second

// Reach returns why nobody answers where a model's server should be, an *Error of Kind
// Unreachable, and nil where somebody accepts a connection. It says nothing to them, so it
// costs nothing, and what they would say of the key and the model's name is not known. A
// model without a server is there, and behind a proxy only a call can tell.
func Reach(ctx context.Context, name string, o Options) error {
	o, _, err := resolve(name, o)
	if err != nil {
		return err
	}
	u := direct(o)
	if u == nil {
		return nil
	}
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	dialer := net.Dialer{Timeout: reachTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		c := &call{name: name, options: o, key: func() string { return "" }}
		return c.unanswered(err)
	}
	return conn.Close()
}

// direct is the address of a server that is asked without anybody between, nil for any
// other. What is wrong with an address Open says.
func direct(o Options) *url.URL {
	u, err := url.Parse(o.BaseURL)
	if err != nil || u.Hostname() == "" || o.HTTP != nil {
		return nil
	}
	if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: u}); err != nil || proxy != nil {
		return nil
	}
	return u
}
