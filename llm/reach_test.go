package llm_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
)

// A server that nobody answers at is found without a call; one that only accepts a
// connection passes, for what it would say is not asked.
func TestReach(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
		t.Setenv(name, "")
	}
	listening, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listening.Close()
	dead := "http://" + llmtest.Nobody(t) + "/v1"
	for _, c := range []struct {
		name, url string
		kind      llm.Kind
		says      string
	}{
		{"vllm:m", "http://" + listening.Addr().String() + "/v1", "", ""},
		{"vllm:m", dead, llm.Unreachable, "vllm:m: nobody answers there: "},
		{"mine:m", dead, llm.Unreachable, "mine:m: nobody answers there: "},
		{"mine:m", "", llm.UnknownModel, `no provider is called "mine"`},
		{"recorded:x", "", "", ""},
		{"policy:x", "", "", ""},
		{"vllm:m", "http://[::1", "", ""}, // Open refuses it
	} {
		err := llm.Reach(t.Context(), c.name, llm.Options{BaseURL: c.url})
		var failed *llm.Error
		switch {
		case c.kind == "" && err != nil:
			t.Errorf("%s at %q: %v", c.name, c.url, err)
		case c.kind != "" && (!errors.As(err, &failed) || failed.Kind != c.kind || !strings.Contains(failed.Error(), c.says) || failed.Hint == ""):
			t.Errorf("%s at %q: %+v", c.name, c.url, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := llm.Reach(ctx, "vllm:m", llm.Options{BaseURL: dead}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	t.Setenv("HTTP_PROXY", dead) // which is not asked for an address of this machine
	if err := llm.Reach(t.Context(), "vllm:m", llm.Options{BaseURL: dead}); kindOf(err) != llm.Unreachable {
		t.Errorf("got %v", err)
	}
}
