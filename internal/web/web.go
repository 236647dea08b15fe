// Package web has what the servers of HTTP have in common: limits, timeouts, and whose
// requests are answered.
package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Limits of a server.
const (
	MaxHeader   = 16 << 10 // bytes
	ReadTimeout = time.Minute
	idleTimeout = 5 * time.Minute
)

// NewServer returns a server of the handlers, with limits and timeouts. An
// answer may take long: who writes it bounds that, waiting for it is not bounded.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: ReadTimeout / 6, ReadTimeout: ReadTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: MaxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// Reads reports whether a request changes nothing.
func Reads(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// Loopback reports whether a host, with or without a port, is this machine's own.
func Loopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// SameOrigin reports whether a request is not of a page from elsewhere.
func SameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && u.Host == r.Host
}

// Bearer reports whether a request gives a token, in a time that says nothing of it.
func Bearer(r *http.Request, token string) bool {
	got, want := sha256.Sum256([]byte(r.Header.Get("Authorization"))), sha256.Sum256([]byte("Bearer "+token))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1
}
