package judge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	kw "github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/llm/llmtest"
	"github.com/kernelwright/kernelwright/prompts"
)

const (
	correctionSchema = `{"type":"object","properties":{"kind":{"type":"string","enum":["correction"]},"issue":{"type":"string"},"why":{"type":"string"},"fix":{"type":"string"},` +
		`"evidence":{"type":"array","items":{"type":"string"}}},"required":["kind","issue","why","fix","evidence"],"additionalProperties":false}`
	optimisationSchema = `{"type":"object","properties":{"kind":{"type":"string","enum":["optimisation","stop"]},"bottleneck":{"type":"string"},"method":{"type":"string"},"plan":{"type":"string"},"why":{"type":"string"},` +
		`"evidence":{"type":"array","items":{"type":"string"}}},"required":["kind","bottleneck","method","plan","why","evidence"],"additionalProperties":false}`
)

// wire keeps the bodies of the requests that go through it.
type wire struct {
	http.RoundTripper
	bodies [][]byte
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	w.bodies = append(w.bodies, b)
	r.Body = io.NopCloser(bytes.NewReader(b))
	return w.RoundTripper.RoundTrip(r)
}

// A server that decodes by the schema follows the order of its keys, so it gets them
// as the prompt asks for them, to the byte.
func TestTheSchemaArrivesInItsOrder(t *testing.T) {
	for _, server := range []struct {
		model string
		start func(testing.TB) *llmtest.Server
		holds string // what the schema stands in
	}{
		{"vllm:m", llmtest.NewCompatible, `"schema":%s`},
		{"openai:gpt-4.1", llmtest.NewOpenAI, `"schema":%s`},
		{"google:m", llmtest.NewGoogle, `"schema":%s`},
		{"anthropic:claude-3-7-sonnet-20250219", llmtest.NewAnthropic, `"input_schema":%s`},
		{"anthropic:claude-sonnet-5-5", llmtest.NewAnthropic, `"schema":%s`},
	} {
		s := server.start(t)
		o := s.Options()
		carried := &wire{RoundTripper: o.HTTP}
		o.HTTP = carried
		remote, err := llm.Open(server.model, o)
		if err != nil {
			t.Fatal(err)
		}
		m, _ := model(t)
		m.LLM = remote
		for _, c := range []struct {
			in           kw.JudgeInput
			says, schema string
		}{{failed, correction, correctionSchema}, {slow, optimisation, optimisationSchema}} {
			s.Say(llmtest.Answer{Text: c.says, Stop: llm.StopEnd})
			if f, err := m.Judge(t.Context(), c.in); err != nil || f.Rule != "" {
				t.Fatalf("%s: %+v %v", server.model, f, err)
			}
			if got := carried.bodies[len(carried.bodies)-1]; !bytes.Contains(got, fmt.Appendf(nil, server.holds, c.schema)) {
				t.Errorf("%s was sent\n%s\nwithout\n%s", server.model, got, c.schema)
			}
		}
	}
}

// own is what a prompt asks for, without anybody's data.
func own(t testing.TB, templates *prompts.Templates, want kw.FeedbackKind, compact bool) string {
	t.Helper()
	what := prompts.JudgeCorrection
	if want == kw.Optimisation {
		what = prompts.JudgeOptimisation
	}
	_, user, err := templates.Judge(what, prompts.JudgeView{Metrics: "```data: metrics\n```", Compact: compact})
	if err != nil {
		t.Fatal(err)
	}
	return user
}

// The objects that a prompt shows have the schema's keys, in its order, in all words
// and in few.
func TestPromptsAskInTheOrderOfTheSchema(t *testing.T) {
	m, _ := model(t)
	for want, f := range forms {
		inOrder(t, want, f, own(t, m.Prompts, want, false))
		inOrder(t, want, f, own(t, m.Prompts, want, true))
	}
	if got := string(forms[kw.Correction].schema().Schema); got != correctionSchema {
		t.Errorf("%s", got)
	}
}

func inOrder(t *testing.T, want kw.FeedbackKind, f form, rest string) {
	t.Helper()
	shown := 0
	for {
		_, after, found := strings.Cut(rest, "{")
		if !found {
			break
		}
		dec := json.NewDecoder(strings.NewReader("{" + after))
		var keys []string
		for depth := 0; ; {
			token, err := dec.Token()
			if err != nil {
				t.Fatal(err)
			}
			if d, ok := token.(json.Delim); ok && (d == '{' || d == '[') {
				depth++
			} else if ok {
				depth--
			} else if key, ok := token.(string); ok && depth == 1 {
				keys = append(keys, key)
				if err := skip(dec); err != nil {
					t.Fatal(err)
				}
			}
			if depth == 0 {
				break
			}
		}
		if !slices.Equal(keys, f.keys()) {
			t.Errorf("%s: the prompt asks for %v, the schema for %v", want, keys, f.keys())
		}
		shown++
		rest = after[int(dec.InputOffset())-1:]
	}
	if shown != len(f.kinds) {
		t.Errorf("%s: the prompt shows %d objects for %v", want, shown, f.kinds)
	}
}

func skip(dec *json.Decoder) error {
	var value json.RawMessage
	return dec.Decode(&value)
}
