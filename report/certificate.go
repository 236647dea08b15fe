package report

import (
	"encoding/json"
	"fmt"

	"github.com/kernelwright/kernelwright"
)

// CertificateFormat is raised when a field of the certificate changes its
// meaning.
const CertificateFormat = 1

// Certificate is the strict verdict on one exported file, with all that it
// rests on. It can be read without the store.
type Certificate struct {
	Format       int                     `json:"format"`
	Kernelwright string                  `json:"kernelwright"`
	Issued       string                  `json:"issued"` // UTC
	File         string                  `json:"file"`   // name of the kernel's file, beside this one
	SHA256       string                  `json:"sha256"` // of that file
	Task         CertifiedTask           `json:"task"`
	Device       kernelwright.Device     `json:"device"`
	Versions     map[string]string       `json:"versions"`
	Run          int64                   `json:"run"`
	Round        int                     `json:"round"`
	Origin       string                  `json:"origin,omitempty"` // who wrote the candidate
	Spend        *kernelwright.Spend     `json:"spend,omitempty"`  // of the run, on language models
	Flags        []kernelwright.TaskFlag `json:"flags"`            // what needs care; never left out
	Verdict      kernelwright.Verdict    `json:"verdict"`
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

// Certify returns the certificate of a run's kernel as JSON, and the exported
// file that it is for. ok is false where the run has no certified kernel.
func Certify(d Data, file string) (certificate []byte, exported string, ok bool, err error) {
	r, v, found := Best(d.Rounds)
	if !found || v.Status != kernelwright.Certified || v.Exported == "" {
		return nil, "", false, nil
	}
	sum := kernelwright.HashText(v.Exported)
	if v.ExportedSHA256 != "" && v.ExportedSHA256 != sum {
		return nil, "", false, fmt.Errorf("the exported file of run %d is not the one that was certified: its hash is %s, the certificate's %s",
			d.Run.ID, sum, v.ExportedSHA256)
	}
	exported = v.Exported
	v.Exported, v.ExportedSHA256 = "", sum
	c := Certificate{
		Format: CertificateFormat, Kernelwright: kernelwright.Version, Issued: when(r.FinishedMS),
		File: file, SHA256: sum,
		Task: CertifiedTask{
			Fingerprint: d.Task.Fingerprint, Name: d.Task.Name, SHA256: kernelwright.HashText(d.Task.Source),
			Inputs: d.Task.Inputs, Outputs: d.Task.Outputs, Parameters: d.Task.Parameters, Notes: d.Task.Notes,
		},
		Device: d.Device, Versions: v.Versions, Run: d.Run.ID, Round: r.Index, Origin: r.Candidate.Origin,
		Flags: flagsOf(d, v), Verdict: v,
	}
	if d.Spend.Calls > 0 {
		c.Spend = &d.Spend
	}
	if c.Flags == nil {
		c.Flags = []kernelwright.TaskFlag{}
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, "", false, fmt.Errorf("writing the certificate of run %d: %w", d.Run.ID, err)
	}
	return append(b, '\n'), exported, true, nil
}
