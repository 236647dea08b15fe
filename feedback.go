package kernelwright

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"
)

// MaxFeedbackBytes is the largest feedback that ParseFeedback reads. A Judge's
// answer is a few sentences; more is a model that runs on.
const MaxFeedbackBytes = 64 << 10

// ParseFeedback decodes and validates the JSON object that a Judge returns.
// Unknown keys are errors: a model that invents a key has not understood the
// form, and what it put there would be lost in silence. The errors say what to
// mend, in words that can be sent back to a model.
func ParseFeedback(b []byte) (Feedback, error) {
	if len(b) > MaxFeedbackBytes {
		return Feedback{}, fmt.Errorf("feedback: %d bytes are too many: at most %d", len(b), MaxFeedbackBytes)
	}
	if !utf8.Valid(b) {
		return Feedback{}, errors.New("feedback: not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var f Feedback
	if err := dec.Decode(&f); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return Feedback{}, errors.New("feedback: the JSON object is missing or ends too early")
		}
		return Feedback{}, fmt.Errorf("feedback: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Feedback{}, errors.New("feedback: there is text after the JSON object")
	}
	return f, f.Validate()
}

// Validate reports what keeps a feedback from being what its kind promises:
// a correction has one issue, an optimisation has one bottleneck, and neither
// has the other's parts.
func (f Feedback) Validate() error {
	type part struct{ key, value string }
	correction := []part{{"issue", f.Issue}, {"why", f.Why}, {"fix", f.Fix}}
	optimisation := []part{{"bottleneck", f.Bottleneck}, {"method", f.Method}, {"plan", f.Plan}}
	var want, other []part
	switch f.Kind {
	case Correction:
		want, other = correction, optimisation
	case Optimisation:
		want, other = optimisation, correction
	case Stop:
		if strings.TrimSpace(f.Why) == "" {
			return errors.New(`feedback: kind "stop" needs "why"`)
		}
		if len(f.Knobs) > 0 {
			return errors.New(`feedback: kind "stop" must not have "knobs"`)
		}
	case "":
		return errors.New(`feedback: "kind" is missing: it must be "correction", "optimisation" or "stop"`)
	default:
		return fmt.Errorf(`feedback: kind %q is none of "correction", "optimisation", "stop"`, f.Kind)
	}
	for _, p := range want {
		if strings.TrimSpace(p.value) == "" {
			return fmt.Errorf("feedback: kind %q needs %q", f.Kind, p.key)
		}
	}
	for _, p := range other {
		if p.value != "" {
			return fmt.Errorf("feedback: kind %q must not have %q", f.Kind, p.key)
		}
	}
	for name, value := range f.Evidence {
		if math.IsNaN(value) || math.IsInf(value, 0) {
			return fmt.Errorf("feedback: evidence %q is not a finite number", name)
		}
	}
	return nil
}
