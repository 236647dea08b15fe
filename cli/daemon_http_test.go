package cli

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/api"
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/store"
)

// An address that others can reach needs a token, and TLS or somebody who does without.
func TestWhereTheAPIIsServed(t *testing.T) {
	const token = "0123456789abcdef"
	for _, c := range []struct {
		h    config.HTTP
		o    api.Options
		says string // empty: it is fine
	}{
		{config.HTTP{Listen: "127.0.0.1:0"}, api.Options{}, ""},
		{config.HTTP{Listen: "[::1]:0"}, api.Options{}, ""},
		{config.HTTP{Listen: "127.0.0.1"}, api.Options{}, "--listen is"},
		{config.HTTP{Listen: ":7791"}, api.Options{}, "no token"},
		{config.HTTP{Listen: "0.0.0.0:7791"}, api.Options{}, "no token"},
		{config.HTTP{Listen: "0.0.0.0:7791"}, api.Options{Token: token}, "no TLS"},
		{config.HTTP{Listen: "0.0.0.0:7791", Insecure: true}, api.Options{}, "no token"},
		{config.HTTP{Listen: "0.0.0.0:7791", Insecure: true}, api.Options{Token: token}, ""},
		{config.HTTP{Listen: "0.0.0.0:7791", TLSCert: "c", TLSKey: "k"}, api.Options{Token: token}, ""},
		{config.HTTP{Listen: "127.0.0.1:0"}, api.Options{Token: "short"}, "less than 16"},
		{config.HTTP{Listen: "127.0.0.1:0"}, api.Options{Token: token, ReadToken: "short"}, "less than 16"},
		{config.HTTP{Listen: "127.0.0.1:0"}, api.Options{ReadToken: token}, "and none in"},
	} {
		err := checkHTTP(c.h, c.o)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", c.h, err, c.says)
		}
		if err != nil && strings.Contains(err.Error(), token) {
			t.Errorf("%v says a token", err)
		}
	}
}

// What the daemon serves is asked for over real connections, with TLS and without. Files that
// are no certificate are told of before anything is served.
func TestTheAPIIsServed(t *testing.T) {
	const token = "0123456789abcdef"
	s, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	cert, key, roots := certificate(t)
	a := &app{env: []string{config.APITokenEnv + "=" + token}}
	serve := func(h config.HTTP) (*served, error) {
		return (&room{config: config.Config{HTTP: h}, folder: t.TempDir(), log: slog.New(slog.DiscardHandler), store: s}).serveAPI(a, api.Options{})
	}
	for _, h := range []config.HTTP{{Listen: "127.0.0.1:0"}, {Listen: "127.0.0.1:0", TLSCert: cert, TLSKey: key}} {
		served, err := serve(h)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
		for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable, "/api/v1/runs": http.StatusOK, "/api/x": http.StatusNotFound} {
			q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, served.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("Authorization", "Bearer "+token)
			r, err := (&http.Client{Transport: transport}).Do(q)
			if err != nil {
				t.Fatal(err)
			}
			if r.Body.Close(); r.StatusCode != want {
				t.Errorf("%s%s: %s", served.url, path, r.Status)
			}
		}
		transport.CloseIdleConnections()
		if err := served.close(); err != nil {
			t.Error(err)
		}
		if strings.HasPrefix(served.url, "https:") != (h.TLSCert != "") {
			t.Error(served.url)
		}
	}
	if _, err := serve(config.HTTP{Listen: "127.0.0.1:0", TLSCert: key, TLSKey: key}); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Error(err)
	}
}

// certificate writes a certificate of this machine and its key, and returns their paths and
// who trusts it.
func certificate(t *testing.T) (cert, key string, roots *x509.CertPool) {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	server.Close()
	roots = x509.NewCertPool()
	roots.AddCert(server.Certificate())
	private, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write := func(kind string, content []byte) string {
		path := filepath.Join(t.TempDir(), kind)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("CERTIFICATE", server.Certificate().Raw), write("PRIVATE KEY", private), roots
}
