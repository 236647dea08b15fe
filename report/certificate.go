package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// CertificateFormat is raised when a field of the certificate changes its
// meaning. 2: issued is when the certification ended, and file may be empty.
const CertificateFormat = 2

// Certificate is the strict verdict on one exported file, with all that it
// rests on. It can be read without the store. What matters comes first.
type Certificate struct {
	Format      int                     `json:"format"`
	Says        string                  `json:"says"`   // the result, in one sentence
	Result      string                  `json:"result"` // [Faster] and others
	File        string                  `json:"file"`   // name of the kernel's file, beside this one; empty where none was handed out
	SHA256      string                  `json:"sha256"` // of the exported file
	Issued      string                  `json:"issued"` // UTC, when the certification ended
	On          string                  `json:"on"`     // the device
	CandidateMS float64                 `json:"candidate_ms"`
	Baselines   map[string]float64      `json:"baselines"` // milliseconds by name
	Speedup     *kernelwright.Speedup   `json:"speedup"`   // against the fastest baseline
	Right       string                  `json:"right"`     // what it was held to
	OtherSizes  string                  `json:"other_sizes,omitempty"`
	Work        string                  `json:"work,omitempty"` // what did the work, with shares of the time
	Assumes     []string                `json:"assumes"`        // what it takes for granted, sentences without their subject
	Flags       []kernelwright.TaskFlag `json:"flags"`          // what needs care; never left out
	Notes       []string                `json:"notes"`          // what the figures are to be read with

	Run          int64                `json:"run"`
	Round        int                  `json:"round"`
	Origin       string               `json:"origin,omitempty"` // who wrote the candidate
	Spend        *kernelwright.Spend  `json:"spend,omitempty"`  // of the run, on language models
	Kernelwright string               `json:"kernelwright"`
	Versions     map[string]string    `json:"versions"`
	Task         CertifiedTask        `json:"task"`
	Device       kernelwright.Device  `json:"device"`
	Verdict      kernelwright.Verdict `json:"verdict"`
}

// CertifiedTask is what the kernel was held to.
type CertifiedTask struct {
	Fingerprint string                    `json:"fingerprint"`
	Name        string                    `json:"name"`
	SHA256      string                    `json:"sha256"` // of the reference's text
	Inputs      []kernelwright.TensorSpec `json:"inputs"`
	Outputs     []kernelwright.TensorSpec `json:"outputs"`
	Parameters  []kernelwright.TensorSpec `json:"parameters"`
	Notes       []string                  `json:"notes,omitempty"`
}

// Certify returns the certificate of a run's best kernel as JSON, and the text of
// the kernel's file, which is to be called file. The text is empty where the kernel
// is not handed out, and the certificate says so. ok is false where the run has no
// certified kernel.
func Certify(d Data, file string) (certificate []byte, exported string, ok bool, err error) {
	r, v, found := Best(d.Rounds)
	if !found || v.Status != kernelwright.Certified || v.Exported == "" {
		return nil, "", false, nil
	}
	exported, sum, err := Exported(r)
	if err != nil {
		return nil, "", false, err
	}
	v.Exported, v.ExportedSHA256 = "", sum
	if d.File = file; !HandedOut(v) {
		d.File, exported = "", ""
	}
	certificate, err = encoded(newCertificate(d, r, v))
	if err != nil {
		return nil, "", false, fmt.Errorf("writing the certificate of run %d: %w", d.Run.ID, err)
	}
	return certificate, exported, true, nil
}

// encoded writes a certificate.
func encoded(c any) ([]byte, error) {
	var b bytes.Buffer
	w := json.NewEncoder(&b)
	w.SetIndent("", "  ")
	w.SetEscapeHTML(false) // it has commands, to be copied
	err := w.Encode(c)
	return b.Bytes(), err
}

// Exported returns the text of a certified round's file, and its SHA-256 (hex).
// An error says that it is not the text that was certified.
func Exported(r kernelwright.Round) (text, sum string, err error) {
	v := Counts(r)
	sum = kernelwright.HashText(v.Exported)
	if v.ExportedSHA256 != "" && v.ExportedSHA256 != sum {
		return "", "", fmt.Errorf("the exported file of round %d of run %d is not the one that was certified: its hash is %s, the certificate's %s",
			r.Index, r.RunID, sum, v.ExportedSHA256)
	}
	return v.Exported, sum, nil
}

func newCertificate(d Data, r kernelwright.Round, v kernelwright.Verdict) Certificate {
	c := Certificate{
		Format: CertificateFormat, Says: headline(d), Result: Result(kernelwright.RunDone, d.Rounds), File: d.File, SHA256: v.ExportedSHA256,
		Issued: when(r.CertifiedMS), On: deviceName(d), CandidateMS: v.CandidateMS, Baselines: v.Baselines, Speedup: v.Speedup,
		Right: rightOn(v), OtherSizes: otherSizes(v), Work: Work(v.Work), Assumes: append([]string{}, v.Assumes...), Flags: flagsOf(d, v), Notes: certificateNotes(d, r, v),
		Run: d.Run.ID, Round: r.Index, Origin: r.Candidate.Origin, Kernelwright: kernelwright.Version, Versions: v.Versions,
		Task: CertifiedTask{
			Fingerprint: d.Task.Fingerprint, Name: d.Task.Name, SHA256: kernelwright.HashText(d.Task.Source),
			Inputs: d.Task.Inputs, Outputs: d.Task.Outputs, Parameters: d.Task.Parameters, Notes: d.Task.Notes,
		},
		Device: d.Device, Verdict: v,
	}
	if d.Spend.Calls > 0 {
		c.Spend = &d.Spend
	}
	if c.Flags == nil {
		c.Flags = []kernelwright.TaskFlag{}
	}
	return c
}

// certificateNotes is what a certificate's figures are to be read with.
func certificateNotes(d Data, r kernelwright.Round, v kernelwright.Verdict) []string {
	notes := []string{}
	switch {
	case HandedOut(v):
	case d.File != "": // somebody asked for it
		notes = append(notes, fmt.Sprintf("the kernel is slower than %s by its whole interval", Against(v.Speedup)))
	default:
		notes = append(notes, slower(v, d.Run.ID, r.Index))
	}
	if note := Quotients(v); note != "" {
		notes = append(notes, note)
	}
	if v.Cached {
		notes = append(notes, "this verdict was reached before, on the same bytes, device and versions, and remembered")
	}
	return notes
}

// rightOn says what a kernel was held to, and on how many families of inputs.
func rightOn(v kernelwright.Verdict) string {
	c := v.Correctness
	gating, advisory := 0, 0
	for _, f := range c.Families {
		switch {
		case f.Gates && f.Passed:
			gating++
		case !f.Gates && !f.Passed:
			advisory++
		}
	}
	if gating == 0 {
		return ""
	}
	s := fmt.Sprintf("right on %s of inputs over %s, held to %s", families(gating), plural(c.Seeds, "seed"), Line(c.Precision))
	if advisory > 0 {
		s += fmt.Sprintf("; not on %s that an honest form fails, too", families(advisory))
	}
	return s
}

func families(n int) string {
	if n == 1 {
		return "1 family"
	}
	return fmt.Sprintf("%d families", n)
}

// certificateFacts is how a report begins: the certificate's first fields in the
// same order; none where the best kernel is not certified.
func certificateFacts(d Data) []fact {
	r, v, ok := Best(d.Rounds)
	if !ok || v.Status != kernelwright.Certified {
		return nil
	}
	if !HandedOut(v) {
		d.File = ""
	}
	c := newCertificate(d, r, v)
	var out []fact
	add := func(name, value string) {
		if value != "" {
			out = append(out, fact{name, value})
		}
	}
	add("File", c.File)
	add("SHA-256 of the kernel's file", c.SHA256)
	add("Issued", c.Issued)
	add("Device", c.On)
	add("Measured", Measured(v))
	add("Correct", c.Right)
	add("Other sizes", c.OtherSizes)
	for _, a := range c.Assumes {
		add("Assumes", "it "+a)
	}
	for _, n := range c.Notes {
		add("Note", n)
	}
	add("Earlier file", d.Older)
	return out
}

func deviceName(d Data) string {
	return strings.TrimPrefix(strings.TrimSuffix(d.Run.Device+", "+d.Device.Name, ", "), ", ")
}
