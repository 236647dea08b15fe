package cli

import (
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/api"
	"github.com/kernelwright/kernelwright/config"
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
