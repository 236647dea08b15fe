package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/hwfeedback"
	"github.com/kernelwright/kernelwright/report"
	"github.com/kernelwright/kernelwright/trainer/policies"
	"github.com/kernelwright/kernelwright/trainer/serving"
)

type policyCmd struct {
	Ls       policyLsCmd       `cmd:"" help:"List the policies, and which of them serves."`
	Show     policyShowCmd     `cmd:"" help:"Show what a policy is, where it came from, and what promoted it."`
	Add      policyAddCmd      `cmd:"" help:"Bring a model: a folder of Hugging Face's, a PEFT adapter, or a GGUF file."`
	Gate     policyGateCmd     `cmd:"" help:"Hold a policy against another one, on tasks that neither has met."`
	Promote  policyPromoteCmd  `cmd:"" help:"Have a policy serve."`
	Rollback policyRollbackCmd `cmd:"" help:"Have the policy serve again that did before."`
	Serve    policyServeCmd    `cmd:"" help:"Serve a policy to programs of yours, by OpenAI's protocol."`
	Export   policyExportCmd   `cmd:"" help:"Copy a policy's folder."`
	Rm       policyRmCmd       `cmd:"" help:"Remove a policy's folder; what is recorded of it stays."`
}

// policyRow is what is said of a policy.
type policyRow struct {
	Name      string `json:"name"`
	Version   int64  `json:"version"`
	Serving   bool   `json:"serving"`
	Best      bool   `json:"best"` // what the next one is held against
	Base      string `json:"base"`
	License   string `json:"license"`
	Pipeline  int64  `json:"pipeline" unknown:"0"`
	Stage     string `json:"stage"`
	Digest    string `json:"digest"`
	Bytes     int64  `json:"bytes"`
	Folder    string `json:"folder"` // empty: it was removed
	CreatedMS int64  `json:"created" time:"ms"`
	RemovedMS int64  `json:"removed" time:"ms"`
}

func (r *room) policyRow(ctx context.Context, p policies.Policy) (policyRow, error) {
	row := policyRow{
		Name: p.Name(), Version: p.Version, Base: p.Base, License: p.License, Pipeline: p.Origin.Pipeline, Stage: p.Origin.Stage,
		Digest: p.Digest, Bytes: p.Bytes, Folder: p.Folder, CreatedMS: p.CreatedMS, RemovedMS: p.RemovedMS,
	}
	if p.RemovedMS != 0 {
		row.Folder = ""
	}
	serves, err := optionally(r.policies.Find(ctx, policies.Current))
	if err != nil {
		return row, err
	}
	best, err := optionally(r.policies.Best(ctx))
	row.Serving, row.Best = serves.Version == p.Version, best.Version == p.Version
	return row, err
}

// optionally takes there being none for no error.
func optionally(p policies.Policy, err error) (policies.Policy, error) {
	if none := new(policies.Error); errors.As(err, &none) && none.Missing {
		return policies.Policy{}, nil
	}
	return p, err
}

// origin says where a policy came from.
func (p policyRow) origin() string {
	if p.Pipeline == 0 {
		return "brought by a person"
	}
	return fmt.Sprintf("%s of pipeline %d", cmp.Or(p.Stage, "a stage"), p.Pipeline)
}

type policyLsCmd struct{}

// Help is shown below the flags.
func (policyLsCmd) Help() string {
	return "With --json an object a policy, one a line."
}

// Run lists the policies.
func (c policyLsCmd) Run(a *app) (err error) {
	a.lines = true
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	all, err := r.policies.List(a.ctx)
	if err != nil {
		return err
	}
	rows := [][]string{{"policy", "", "trained from", "by", "licence", "size", "recorded", "digest"}}
	for _, p := range all {
		row, err := r.policyRow(a.ctx, p)
		if err != nil {
			return err
		}
		if a.json {
			if err := a.printLine(row); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{
			row.Name, row.state(), dash(report.Line(row.Base)), report.Line(row.origin()), dash(report.Line(row.License)), report.ByteSize(row.Bytes), clock(row.CreatedMS), row.Digest[:12],
		})
	}
	if a.json {
		return nil
	}
	if len(all) == 0 {
		return a.printf("there are no policies: `kernelwright train run` makes one, and `kernelwright policy add` brings one\n")
	}
	return ignoreClosed(report.Columns(a.stdout, rows, map[int]bool{0: true, 1: true, 2: true, 3: true, 4: true, 6: true, 7: true}))
}

// state says what a policy does.
func (p policyRow) state() string {
	var all []string
	if p.Serving {
		all = append(all, "serves")
	}
	if p.Best {
		all = append(all, "best")
	}
	if p.RemovedMS != 0 {
		all = append(all, "removed")
	}
	return strings.Join(all, ", ")
}

func dash(s string) string { return cmp.Or(s, "–") }

type policyAddCmd struct {
	Path    string `arg:"" help:"A folder that save_pretrained of transformers or PEFT wrote, with safetensors; or a GGUF file." type:"path" predictor:"file"`
	Base    string `help:"What it was trained from: a policy's name, or a model's." placeholder:"NAME"`
	License string `help:"Its licence; else what its README.md says." placeholder:"NAME"`
}

// Help is shown below the flags.
func (policyAddCmd) Help() string {
	return "The folder is copied into the data folder, an adapter with its base. It does not serve until it is promoted. The same content is the same version: adding it again mends a folder that was changed by hand."
}

// Run records a model as a policy.
func (c policyAddCmd) Run(a *app) (err error) {
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	folder, base := c.Path, c.Base
	if strings.HasSuffix(strings.ToLower(c.Path), ".gguf") {
		if folder, err = r.plain(a, c.Path); err != nil {
			return cutShort(a.ctx, err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
		base = cmp.Or(base, strings.TrimSuffix(filepath.Base(c.Path), filepath.Ext(c.Path)))
	}
	if from, err := r.policies.Lookup(a.ctx, base); err == nil {
		base = from.Name() // of current the version
	}
	before, err := r.policies.List(a.ctx)
	if err != nil {
		return err
	}
	p, err := r.policies.Add(a.ctx, folder, base, c.License, policies.Origin{})
	if err != nil {
		return cutShort(a.ctx, err)
	}
	row, err := r.policyRow(a.ctx, p)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(row)
	}
	if slices.ContainsFunc(before, func(b policies.Policy) bool { return b.Version == p.Version && b.RemovedMS == 0 }) {
		return a.printf("this is policy %s, which is here already\n", p.Name())
	}
	return a.printf("recorded as policy %s (%s, licence %s); `kernelwright policy promote %s` has it serve\n", p.Name(), report.ByteSize(p.Bytes), cmp.Or(report.Line(p.License), "not known"), p.Name())
}

// plain writes the model of a GGUF file as a folder, which is the caller's to remove.
func (r *room) plain(a *app, path string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", noFile(path)
	}
	python, err := r.trainingPython(a.ctx)
	if err != nil {
		return "", err
	}
	show := newProgress(a.stderr)
	defer show.done()
	show.stage("reading", path)
	folder, err := os.MkdirTemp(r.folder, ".gguf-")
	if err != nil {
		return "", err
	}
	if err := serving.Convert(a.ctx, python, path, folder); err != nil {
		return "", errors.Join(err, os.RemoveAll(folder))
	}
	return folder, nil
}

type policyPromoteCmd struct {
	Policy string `arg:"" help:"Its name: v3."`
	Reason string `help:"Why, in a sentence for the record." default:"a person said so" placeholder:"TEXT"`
}

// Help is shown below the flags.
func (policyPromoteCmd) Help() string {
	return "The policy is asked once first, and one that cannot answer does not serve. From the next call on policy:current is this version, in a daemon that runs, too; calls that are under way are answered by the version that they went to. It is recorded as a person's decision, without a gate. No setting changes: it is the Coder where coder.name is policy:current."
}

// Run has a policy serve.
func (c policyPromoteCmd) Run(a *app) error {
	return turning(a, func(r *room) (policies.Policy, string, error) {
		p, err := r.policies.Find(a.ctx, c.Policy)
		if err != nil {
			return p, "", err
		}
		return r.promote(a, p, 0, c.Reason)
	})
}

// promote has a policy serve that answers. It says whether it did before.
func (r *room) promote(a *app, p policies.Policy, gate int64, reason string) (policies.Policy, string, error) {
	row, err := r.policyRow(a.ctx, p)
	if err != nil || row.Serving {
		return p, "serves already", err
	}
	show := newProgress(a.stderr)
	defer show.done()
	show.stage("asking", p.Name())
	if err := r.servers.Smoke(a.ctx, p); err != nil {
		return p, "", cutShort(a.ctx, err)
	}
	return p, "serves now", r.policies.Promote(a.ctx, p, gate, reason)
}

// turning changes which policy serves, and says so.
func turning(a *app, turn func(*room) (policies.Policy, string, error)) (err error) {
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	p, what, err := turn(r)
	if err != nil {
		return err
	}
	if a.json {
		row, err := r.policyRow(a.ctx, p)
		if err != nil {
			return err
		}
		return a.printJSON(row)
	}
	said := fmt.Sprintf("policy %s %s: policy:current is this version\n", p.Name(), what)
	if name := r.config.Coder.Name; name != kernelwright.PolicyPrefix+policies.Current {
		said += fmt.Sprintf("the Coder is %s all the same; it is this policy with --coder policy:current, or coder.name = \"policy:current\"\n", report.Line(name))
	}
	return a.printf("%s", said)
}

type policyRollbackCmd struct {
	Reason string `help:"Why, in a sentence for the record." default:"a person said so" placeholder:"TEXT"`
}

// Help is shown below the flags.
func (policyRollbackCmd) Help() string {
	return "From the next call on policy:current is the version that served before the one that serves. Given twice it goes back by two. What was taken back stays recorded."
}

// Run goes back.
func (c policyRollbackCmd) Run(a *app) error {
	return turning(a, func(r *room) (policies.Policy, string, error) {
		p, err := r.policies.Rollback(a.ctx, c.Reason)
		return p, "serves again", err
	})
}

type policyRmCmd struct {
	Policy string `arg:"" help:"Its name: v3."`
}

// Run removes a policy's folder.
func (c policyRmCmd) Run(a *app) (err error) {
	r, err := a.open(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	p, err := r.policies.Find(a.ctx, c.Policy)
	if err != nil {
		return err
	}
	if err := r.policies.Remove(a.ctx, p); err != nil {
		return err
	}
	if p, err = r.policies.Lookup(a.ctx, p.Name()); err != nil {
		return err
	}
	if a.json {
		row, err := r.policyRow(a.ctx, p)
		if err != nil {
			return err
		}
		return a.printJSON(row)
	}
	return a.printf("removed the folder of policy %s; what is recorded of it stays\n", p.Name())
}

type policyExportCmd struct {
	Policy string `arg:"" help:"Its name: v3, or current."`
	Out    string `help:"The folder to write, which must not be there yet." placeholder:"DIR" type:"path" required:"" predictor:"dir"`
}

// Run copies a policy's folder.
func (c policyExportCmd) Run(a *app) (err error) {
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	p, err := r.policies.Find(a.ctx, c.Policy)
	if err != nil {
		return err
	}
	if err := r.policies.Export(a.ctx, p, c.Out); err != nil {
		return cutShort(a.ctx, err)
	}
	if a.json {
		return a.printJSON(map[string]any{"name": p.Name(), "path": a.shown(c.Out), "digest": p.Digest, "bytes": p.Bytes})
	}
	return a.printf("written: %s (policy %s, %s)\n", report.Line(a.shown(c.Out)), p.Name(), report.ByteSize(p.Bytes))
}

type policyServeCmd struct {
	Policy string `arg:"" optional:"" default:"current" help:"Its name: v3, or current."`
	Listen string `help:"A loopback address and a port; 0 is any free one." default:"127.0.0.1:0" placeholder:"HOST:PORT"`
}

// Help is shown below the flags.
func (policyServeCmd) Help() string {
	return "The first line is where OpenAI's paths begin: /chat/completions, /models. A token in the environment variable " + serving.TokenEnv + " is asked of every request. Runs need none of this: they start policies by themselves."
}

// Run serves a policy until it is told to stop.
func (c policyServeCmd) Run(a *app) (err error) {
	host, port, err := c.address()
	if err != nil {
		return err
	}
	r, err := a.openRecord()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	p, err := r.policies.Find(a.ctx, c.Policy)
	if err != nil {
		return err
	}
	if err := r.policies.Check(a.ctx, p); err != nil {
		return err
	}
	python, err := r.trainingPython(a.ctx)
	if err != nil {
		return cutShort(a.ctx, err)
	}
	o := serving.Local{
		Folder: p.Folder,
		Name:   kernelwright.PolicyPrefix + p.Name(),
		Host:   host,
		Port:   port,
		Device: "auto",
		GPU:    r.servingGPU(),
		Leases: hwfeedback.LeaseFolder(),
		Token:  a.getenv(serving.TokenEnv),
	}
	err = serving.Serve(a.ctx, python, o, func(at serving.Endpoint) error {
		if a.json {
			return a.printLine(map[string]any{"url": at.URL, "model": at.Model, "context": at.Context})
		}
		return a.printf("%s\nmodel %s, a context of %d tokens\n", at.URL, at.Model, at.Context)
	})
	if a.ctx.Err() != nil {
		return nil // it was told to stop
	}
	return err
}

// address is where to listen: on this machine alone.
func (c policyServeCmd) address() (host string, port int, err error) {
	host, text, err := net.SplitHostPort(c.Listen)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port < 0 || port > 65535 {
		return "", 0, usage(fmt.Sprintf("--listen is %q", c.Listen), "it takes HOST:PORT, such as 127.0.0.1:8000")
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "", 0, usage(fmt.Sprintf("%s can be reached from elsewhere", c.Listen), "policies are served on this machine alone: 127.0.0.1")
	}
	return host, port, nil
}
