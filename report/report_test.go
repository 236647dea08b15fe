package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"pgregory.net/rapid"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/llm"
	"github.com/kernelwright/kernelwright/metrics"
)

func yes() *bool { b := true; return &b }

func verdict(status kernelwright.Status, ms, speed float64) kernelwright.Verdict {
	v := kernelwright.Verdict{Status: status, Level: kernelwright.Quick, CostS: map[string]float64{"build": 0.3, "time": 0.9}}
	if ms == 0 {
		v.Reason = "row 3 differs by 0.5, the bound is 1e-6"
		v.Build.Errors = []kernelwright.Diagnostic{{Line: 7, Message: "expected ';' before '}' token"}}
		return v
	}
	v.CandidateMS = ms
	v.Baselines = map[string]float64{"max-autotune": 3.1, "eager": 4.2, "compile": 3}
	v.Speedup = &kernelwright.Speedup{Value: speed, Low: speed * 0.95, High: speed * 1.05, Against: "compile"}
	v.Speedups = map[string]kernelwright.Speedup{"eager": {Value: speed * 1.4, Low: speed * 1.3, High: speed * 1.5, Against: "eager"}}
	v.Headroom = 0.7
	v.Floor = kernelwright.Floor{MS: ms * 0.7, Bound: "memory", Bytes: 1 << 24}
	v.Metrics = map[string]float64{"achieved_gbs": 13.2, "memory_share": 0.61}
	v.Timing = kernelwright.TimingReport{
		Candidate: kernelwright.Measurement{MedianMS: ms, P25MS: ms * .99, P75MS: ms * 1.01, LowMS: ms * .98, HighMS: ms * 1.02, Repetitions: 60, Clock: "event"},
		Baselines: map[string]kernelwright.Measurement{"eager": {MedianMS: 4.2, LowMS: 4.1, HighMS: 4.3}},
		Threads:   2, Protocol: "interleaved",
	}
	v.Correctness = kernelwright.CorrectnessReport{
		Precision: "float32", Seeds: 10, KernelBench: yes(), Deterministic: yes(),
		Families: []kernelwright.FamilyReport{
			{Name: "base", Gates: true, Passed: true, Seeds: 10, MaxError: 1e-7, MaxBound: 4e-6, RMSError: 1e-8, RMSBound: 1e-6},
			{Name: "near_overflow", Passed: false, Seeds: 10, Note: "compile fails it"},
		},
	}
	v.Work = kernelwright.WorkReport{Custom: 0.97, PyTorch: 0.03, Operators: []kernelwright.OperatorShare{{Name: "softmax", Kind: "custom", Share: .97, Calls: 1}}}
	return v
}

func finished() Data {
	exported := "import torch\nclass ModelNew: ...\n"
	certificate := verdict(kernelwright.Certified, 1.4, 2.14)
	certificate.Level = kernelwright.Certify
	certificate.Exported, certificate.ExportedSHA256 = exported, kernelwright.HashText(exported)
	certificate.Versions = map[string]string{"torch": "2.11.0", "python": "3.11.2"}
	source := "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return lib.softmax(x)\n"
	return Data{
		Run: kernelwright.Run{
			ID: 3, TaskName: "softmax", Device: "cpu", Strategy: "rounds", Coder: "builtin", Judge: "rules", MaxRounds: 10,
			Status: kernelwright.RunDone, Stop: kernelwright.StopNoProgress, StartedMS: 1_790_000_000_000, FinishedMS: 1_790_000_060_000,
		},
		Task: kernelwright.Task{
			Fingerprint: strings.Repeat("ab", 32), Name: "softmax", Source: "class Model: ...\n",
			Inputs: []kernelwright.TensorSpec{{Shape: []int{2048, 1024}, DType: "float32"}}, Operators: []string{"aten.softmax"},
			Operations: 10_000_000, LeastBytes: 16 << 20, Notes: []string{"evaluated in eval mode"},
		},
		Device: kernelwright.Device{Kind: kernelwright.CPUDevice, Name: "a CPU", Ceilings: kernelwright.Ceilings{MemoryGBs: 20, CacheGBs: 80, FP32GFLOPs: 100}},
		Rounds: []kernelwright.Round{
			{Index: 0, Candidate: kernelwright.Candidate{Source: source, Origin: "builtin", Note: "three passes"}, Verdict: verdict(kernelwright.Correct, 2.2, 1.36),
				Feedback: &kernelwright.Feedback{Kind: kernelwright.Optimisation, Bottleneck: "memory traffic", Method: "fuse two passes", Plan: "read the row once",
					Evidence: map[string]float64{"achieved_gbs": 13.2}, Knobs: map[string]int{"passes": 2}, Rule: "memory"}},
			{Index: 1, Candidate: kernelwright.Candidate{Source: strings.Replace(source, "softmax", "softmax2", 1), Note: "two passes"}, Verdict: verdict(kernelwright.Wrong, 0, 0)},
			{Index: 2, Candidate: kernelwright.Candidate{Source: strings.Replace(source, "softmax", "softmax3", 1), Note: "two passes, online"},
				Verdict: verdict(kernelwright.Correct, 1.4, 2.14), Certificate: &certificate},
			{Index: 3, Candidate: kernelwright.Candidate{Source: strings.Replace(source, "softmax", "softmax3", 1)}, Verdict: verdict(kernelwright.Correct, 1.5, 2)},
		},
	}
}

func pages(t *testing.T, d Data) (html, markdown string) {
	t.Helper()
	var h, m bytes.Buffer
	if err := HTML(&h, d); err != nil {
		t.Fatal(err)
	}
	if err := Markdown(&m, d); err != nil {
		t.Fatal(err)
	}
	if dir := os.Getenv("KERNELWRIGHT_TEST_REPORTS"); dir != "" {
		base := filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "_"))
		_ = os.WriteFile(base+".html", h.Bytes(), 0o600)
		_ = os.WriteFile(base+".md", m.Bytes(), 0o600)
	}
	return h.String(), m.String()
}

func TestAFinishedRun(t *testing.T) {
	d := finished()
	profile := func(memory float64) *kernelwright.Profile {
		return &kernelwright.Profile{Tool: "ncu", Launches: 2, MS: 1.3, Position: map[string]float64{"dram_roof_share": memory}}
	}
	d.Rounds[0].Verdict.Profile, d.Rounds[0].Verdict.EagerProfile, d.Rounds[2].Verdict.Profile = profile(0.53), profile(0.31), profile(0.78)
	html, markdown := pages(t, d)
	for _, want := range []string{"of the measured ceilings: memory 53 %", "of the measured ceilings: memory 78 %", "eager: profile by Nsight Compute: 2 launches, 1.30 ms on the GPU; of the measured ceilings: memory 31 %",
		"2.14×", "compile", "certified", "2.03", "read the row once", "achieved_gbs", "near_overflow", "softmax3", "evaluated in eval mode", "a CPU"} {
		if !strings.Contains(strings.ToLower(html), strings.ToLower(want)) {
			t.Errorf("the page lacks %q", want)
		}
		if !strings.Contains(strings.ToLower(strings.ReplaceAll(markdown, `\`, "")), strings.ToLower(want)) {
			t.Errorf("the Markdown lacks %q", want)
		}
	}
	if !strings.Contains(html, "<svg") || strings.Contains(html, "<script") || strings.Contains(html, "http://") || strings.Contains(html, "https://") {
		t.Error("the page must draw its chart and load nothing")
	}
	s := Summarise(d)
	if s.Round != 2 || s.Status != "certified" || s.MS != 1.4 || s.Rounds != 4 {
		t.Errorf("%+v", s)
	}
}

func TestHowWeightsAreKnownIsShown(t *testing.T) {
	d := finished()
	for by, want := range map[string]string{"by name": "known by their names", "by value": "known by what they hold", "by seed": "evaluated as constructed under secret seeds"} {
		d.Rounds[2].Certificate.Weights = by
		html, markdown := pages(t, d)
		if !strings.Contains(html, want) || !strings.Contains(markdown, want) {
			t.Errorf("%s: the pages lack %q", by, want)
		}
		b, _, ok, err := Certify(d, "softmax.py")
		if err != nil || !ok || !bytes.Contains(b, []byte(`"weights": "`+by+`"`)) {
			t.Errorf("%s: the certificate does not say so (%v)", by, err)
		}
	}
}

func TestTheCertificateHoldsTheFileToItsHash(t *testing.T) {
	d := finished()
	b, exported, ok, err := Certify(d, "softmax.best.py")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	var c Certificate
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	if c.SHA256 != kernelwright.HashText(exported) || c.Verdict.ExportedSHA256 != c.SHA256 || c.Verdict.Exported != "" || c.Versions["torch"] == "" || c.Round != 2 {
		t.Errorf("%+v", c)
	}
	if !bytes.Contains(b, []byte(`"flags": []`)) {
		t.Error("flags are always written")
	}
	d.Rounds[2].Certificate.Exported += "# changed\n"
	if _, _, _, err := Certify(d, "x"); err == nil {
		t.Error("a file that is not the certified one must not get its certificate")
	}
	d.Rounds[2].Certificate = nil
	if _, _, ok, err := Certify(d, "x"); ok || err != nil {
		t.Error("no certificate without certification")
	}
}

func TestBestPrefersWhatIsCertified(t *testing.T) {
	certificate := verdict(kernelwright.Certified, 2, 1.5)
	failed := verdict(kernelwright.Wrong, 0, 0)
	rounds := []kernelwright.Round{
		{Index: 0, Verdict: verdict(kernelwright.Correct, 2, 1.5), Certificate: &certificate},
		{Index: 1, Verdict: verdict(kernelwright.Correct, 1, 3), Certificate: &failed},
	}
	if r, v, ok := Best(rounds); !ok || r.Index != 0 || v.Status != kernelwright.Certified {
		t.Errorf("round %d, %s", r.Index, v.Status)
	}
	if _, _, ok := Best(nil); ok {
		t.Error("nothing is best of nothing")
	}
}

func TestFlagsAreShownWhereverTheKernelIs(t *testing.T) {
	d := finished()
	d.Task.Flags = []kernelwright.TaskFlag{kernelwright.FlagConstantOutput}
	html, markdown := pages(t, d)
	var table bytes.Buffer
	if err := Table(&table, []Summary{Summarise(d)}); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"page": html, "Markdown": markdown, "table": table.String()} {
		if !strings.Contains(text, "does not vary at all") {
			t.Errorf("the %s hides the flag", name)
		}
	}
}

func TestEachFlagHasASentence(t *testing.T) {
	for _, f := range []kernelwright.TaskFlag{
		kernelwright.FlagConstantOutput, kernelwright.FlagIgnoresInput, kernelwright.FlagIgnoresWeights, kernelwright.FlagTrainModeOnly,
		kernelwright.FlagIllConditioned, kernelwright.FlagNonFiniteReference, kernelwright.FlagTooLarge,
	} {
		if text := FlagText(f); !strings.HasPrefix(text, "the reference") {
			t.Errorf("%s is %q", f, text)
		}
	}
	if text := FlagText("of_a_later_version"); text != "of a later version" {
		t.Errorf("another is %q", text)
	}
}

func TestRunsWithoutAKernel(t *testing.T) {
	for _, status := range []kernelwright.RunStatus{kernelwright.RunInvalid, kernelwright.RunDeclined, kernelwright.RunFailed, kernelwright.RunQueued, kernelwright.RunRunning, kernelwright.RunDone} {
		t.Run(string(status), func(t *testing.T) {
			d := Data{Run: kernelwright.Run{TaskName: "bad", Status: status, Reason: "get_inputs is missing", Hint: "add it", Detail: "Traceback <x>"}}
			html, markdown := pages(t, d)
			if !strings.Contains(html, "Get_inputs is missing.") || !strings.Contains(markdown, "What to do: Add it.") || !strings.Contains(html, "Traceback &lt;x&gt;") {
				t.Error("reason, hint and traceback are shown")
			}
			if s := Summarise(d); s.Status != string(status) || s.Round != -1 {
				t.Errorf("%+v", s)
			}
		})
	}
	d := finished()
	d.Rounds = d.Rounds[1:2]
	if s := Summarise(d); s.Status != "wrong" || s.Reason == "" {
		t.Errorf("%+v", s)
	}
	pages(t, d)
}

const hostile = "</pre></code></title></style><script>alert(1)</script>```\n````\n| x | [y](http://evil.example) <img src=x onerror=alert(1)> \x1b[2J\u202e \" ' & {{.}} www.evil.example"

func TestHostileTextsStayTexts(t *testing.T) {
	d := finished()
	d.Run.TaskName, d.Run.Reason, d.Run.Hint, d.Run.Detail = hostile, hostile, hostile, hostile
	d.Task.Name, d.Task.Source, d.Task.Notes, d.Task.Operators = hostile, hostile, []string{hostile}, []string{hostile}
	d.Task.Flags = []kernelwright.TaskFlag{hostile}
	for i := range d.Rounds {
		r := &d.Rounds[i]
		r.Candidate.Note, r.Candidate.Origin = hostile, hostile
		r.Candidate.Source += hostile
		r.Verdict.Reason, r.Verdict.Hint, r.Verdict.Output = hostile, hostile, hostile
		r.Verdict.Build = kernelwright.BuildReport{Log: hostile, Errors: []kernelwright.Diagnostic{{Line: 1, Message: hostile}}, Missed: []kernelwright.Diagnostic{{Message: hostile}}, Kernels: []kernelwright.Kernel{{Name: hostile, Arch: hostile, Instructions: map[string]int{hostile: 1}}}}
		r.Verdict.Evidence = []string{hostile}
		r.Verdict.Metrics = map[string]float64{hostile: 1}
		r.Verdict.Profile = &kernelwright.Profile{Tool: hostile, Why: hostile, Kernels: []kernelwright.KernelProfile{{Name: hostile, Whose: hostile, Metrics: map[string]float64{hostile: 1}}}}
		r.Verdict.EagerProfile = r.Verdict.Profile
		r.Feedback = &kernelwright.Feedback{Kind: hostile, Issue: hostile, Plan: hostile, Evidence: map[string]float64{hostile: 1}, Knobs: map[string]int{hostile: 2}}
		if r.Verdict.Speedup != nil {
			r.Verdict.Speedup.Against = hostile
		}
		if r.Certificate != nil {
			r.Certificate.Baselines = map[string]float64{hostile: 2}
			r.Certificate.Versions = map[string]string{hostile: hostile}
			r.Certificate.Correctness.Families[0].Name = hostile
			r.Certificate.Work.Operators = []kernelwright.OperatorShare{{Name: hostile, Kind: hostile}}
			r.Certificate.Work.Launches = []kernelwright.Launch{{Name: hostile, Count: 1, MS: 1}}
		}
	}
	d.Talk = []llm.Record{{Key: llm.Key{Agent: hostile}, Model: hostile, Request: llm.Request{Messages: []llm.Message{{Role: hostile, Text: hostile, Name: hostile}}},
		Reply: llm.Reply{Text: hostile, Reasoning: hostile, Stop: hostile, ToolCalls: []llm.ToolCall{{Name: hostile, Arguments: hostile}}}}, {Key: llm.Key{Round: 9}, Reply: llm.Reply{Text: hostile}}}
	html, markdown := pages(t, d)
	for _, bad := range []string{"<script", "<img", "\x1b", "\u202e"} {
		if strings.Contains(html, bad) {
			t.Errorf("the page holds %q", bad)
		}
		if bad[0] != '<' && strings.Contains(markdown, bad) {
			t.Errorf("the Markdown holds %q", bad)
		}
	}
	wellFormed(t, html)
	inCode, fence := false, ""
	for line := range strings.Lines(markdown) {
		line = strings.TrimSuffix(line, "\n")
		run := len(line) - len(strings.TrimLeft(line, "`"))
		switch {
		case inCode && line == fence:
			inCode = false
		case !inCode && run >= 3:
			inCode, fence = true, line[:run]
		case !inCode && (strings.Contains(line, "<script") && !strings.Contains(line, `\<script`) || strings.Contains(line, "http://")):
			t.Errorf("markup outside of code: %q", line)
		}
	}
	if inCode {
		t.Error("a fence is left open")
	}
}

// wellFormed reads the page's tags as a strict reader would: each is closed in
// its order. Void elements and attributes without a value are HTML's own.
func wellFormed(t *testing.T, html string) {
	t.Helper()
	dec := xml.NewDecoder(strings.NewReader(html))
	dec.Strict, dec.AutoClose, dec.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	var open []string
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			open = append(open, tok.Name.Local)
		case xml.EndElement:
			if len(open) == 0 || open[len(open)-1] != tok.Name.Local {
				t.Fatalf("</%s> closes %v", tok.Name.Local, open)
			}
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		t.Errorf("left open: %v", open)
	}
}

func TestDiffRebuildsBothTexts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.SampledFrom([]string{"a", "b", "c", ""})
		a := rapid.SliceOfN(line, 0, 12).Draw(t, "a")
		b := rapid.SliceOfN(line, 0, 12).Draw(t, "b")
		var old, new []string
		for _, l := range compare(a, b) {
			if l.Op != '+' {
				old = append(old, l.Text)
				if a[l.Old-1] != l.Text {
					t.Fatal("a wrong line number in the old text")
				}
			}
			if l.Op != '-' {
				new = append(new, l.Text)
				if b[l.New-1] != l.Text {
					t.Fatal("a wrong line number in the new text")
				}
			}
		}
		if strings.Join(old, "\n") != strings.Join(a, "\n") || strings.Join(new, "\n") != strings.Join(b, "\n") {
			t.Fatalf("%q and %q became %q and %q", a, b, old, new)
		}
	})
	if Diff("a\n", "a\n") != nil {
		t.Error("the same text has no difference")
	}
	long := strings.Repeat("same\n", 40)
	lines := Diff(long+"x\n", long+"y\n")
	if len(lines) != 6 || lines[0].Op != '@' || lines[0].Text != "37 lines the same" {
		t.Errorf("%+v", lines)
	}
}

func TestNumbersReadWell(t *testing.T) {
	for ms, want := range map[float64]string{0: "–", 0.0123: "12.3 µs", 0.00045: "0.450 µs", 1.234: "1.23 ms", 99.96: "100.0 ms", 1234: "1234 ms", 64321: "64.3 s"} {
		if got := Milliseconds(ms); got != want {
			t.Errorf("%v: %q, want %q", ms, got, want)
		}
	}
	if Clean("a\x1b[31mb\u202e\r\n") != "a⟨U+001B⟩[31mb⟨U+202E⟩\n" {
		t.Errorf("%q", Clean("a\x1b[31mb\u202e\r\n"))
	}
}

func TestMarksOfSpeedups(t *testing.T) {
	near, vague, faster := &kernelwright.Speedup{Value: 1.03, Low: 0.98, High: 1.09}, &kernelwright.Speedup{Value: 1.3, Low: 0.5, High: 1.9}, &kernelwright.Speedup{Value: 2, Low: 1.9, High: 2.1}
	got := []string{Speedup(near), Speedup(vague), Speedup(faster)}
	if want := []string{"≈ 1.03× [0.98, 1.09]", "? 1.30× [0.50, 1.90]", "2.00× [1.90, 2.10]"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if got := Legend(faster); len(got) != 1 {
		t.Errorf("got %q", got)
	}
	if got := Legend(near, vague); len(got) != 3 || got[1] == got[2] {
		t.Errorf("got %q", got)
	}
}

func TestTheTable(t *testing.T) {
	d := finished()
	row := Summarise(d)
	row.Report, row.Kernel = "out/softmax.report.html", "out/softmax.best.py"
	bad := Summary{Task: "bad", Status: "invalid", Reason: "get_inputs is missing", Hint: "add it", Round: -1}
	var b bytes.Buffer
	if err := Table(&b, []Summary{row, bad}); err != nil {
		t.Fatal(err)
	}
	want := `task     rounds  verdict    candidate    eager  compile  max-autotune             speedup  against  headroom  report                   kernel
softmax       4  certified    1.40 ms  4.20 ms  3.00 ms       3.10 ms  2.14× [2.03, 2.25]  compile      70 %  out/softmax.report.html  out/softmax.best.py
bad           0  invalid            –        –        –             –                   –  –               –  –                        –

bad: get_inputs is missing (add it)
headroom: the share of the kernel's time that the roofline needs; 100 % is as fast as this hardware can be
`
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestKernel(t *testing.T) {
	k := kernelwright.Kernel{
		Name: "rows(float const*)", Arch: "sm_90a", Registers: 24, SharedBytes: 128, LoadBytes: 4, StoreBytes: 16,
		Instructions: map[string]int{"load_global": 10, "fp32": 60, "integer": 20, "branch": 5, "move": 5},
	}
	const want = "rows(float const*) (sm_90a): 24 registers, 128 B shared; 100 instructions: fp32 60 %, integer 20 %, load global 10 %, branch 5 %; 4 bytes a global load, 16 bytes a global store"
	if got := Kernel(k); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	spills := kernelwright.Kernel{Name: "a\x1b[2J", Arch: "sm_80", Registers: 255, SpillStoreBytes: 8, SpillLoadBytes: 4, Warps: 8}
	if got := Kernel(spills); got != "a⟨U+001B⟩[2J (sm_80): 255 registers, 8 warps, 12 B spilled" {
		t.Errorf("got %q", got)
	}
}

func TestProfile(t *testing.T) {
	p := &kernelwright.Profile{Tool: "ncu", Launches: 3, MS: 0.1, Kernels: []kernelwright.KernelProfile{
		{Name: "void rows<4>(float const*)", Whose: "custom", Launches: 2, MS: 0.08, Share: 0.8, Grid: [3]int{2048, 1, 1}, Block: [3]int{32, 8, 1}, Metrics: map[string]float64{
			metrics.DRAMRead: 8 << 20, metrics.DRAMWritten: 4 << 20, metrics.DRAMBusy: 81.7, metrics.IssueBusy: 22.4, metrics.TensorBusy: 2.6, metrics.WarpsActive: 71.2, metrics.WarpsAllowed: 100, metrics.Registers: 32,
			metrics.LoadSectors: 32, metrics.StoreSectors: 4, metrics.BankConflicts: 30, metrics.SharedWavefronts: 40, metrics.LocalLoaded: 1024, metrics.LocalStored: 1024,
			"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 17.2,
			"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio":         3,
		}},
		{Name: "Memcpy DtoD", Whose: "pytorch", Launches: 1, MS: 0.02, Share: 0.2},
	}}
	want := []string{
		"profile by Nsight Compute: 3 launches, 0.100 ms on the GPU",
		"void rows<4>(float const*) × 2 (custom): 80.0 µs, 80 %; 2048 blocks of 32 × 8 threads; 8.00 MiB read and 4.00 MiB written, memory 82 % of its theoretical peak, instructions issued in 22 % of active cycles, tensor cores at work in 3 % of active cycles, occupancy 71 % of 100 %, 32 registers, 32 sectors a load, 4 a store, bank conflicts 75 % of shared memory's work, 2.00 KiB of local memory moved, warps wait for global memory",
		"Memcpy DtoD (pytorch): 20.0 µs, 20 %",
	}
	if got := Profile(p); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	static := &kernelwright.Profile{Tool: "static", Why: "ncu is not\x1b[2J there", Kernels: []kernelwright.KernelProfile{{Name: "rows", Whose: "custom", Metrics: map[string]float64{metrics.Registers: 40}}}}
	if got := Profile(static); len(got) != 2 || got[0] != "profile by the compiler alone (ncu is not⟨U+001B⟩[2J there)" || got[1] != "rows (custom): 40 registers" {
		t.Errorf("got %q", got)
	}
	if got := Profile(nil); got != nil {
		t.Errorf("got %q of nothing", got)
	}
	p.MS, p.Kernels[0].Share, p.Kernels[1].MS, p.Kernels[1].Share = 0, 0, 0, 0 // the time of one is not known, nor that of all
	p.Kernels[0].Metrics = nil
	want = []string{"profile by Nsight Compute: 3 launches", "void rows<4>(float const*) × 2 (custom): 80.0 µs; 2048 blocks of 32 × 8 threads", "Memcpy DtoD (pytorch)"}
	if got := Profile(p); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for n, says := range map[int]string{1: "; this GPU or this Nsight Compute has no a", 3: "has no a, b, c", 5: "has no a, b, c and 2 more"} {
		p := &kernelwright.Profile{Tool: "ncu", Launches: 1, MS: 1, Missing: []string{"a", "b", "c", "d", "e"}[:n]}
		lines := Profiles(kernelwright.Verdict{Profile: p, EagerProfile: p})
		if !strings.HasSuffix(lines[0], says) || lines[1] != "eager: profile by Nsight Compute: 1 launch, 1.00 ms on the GPU" {
			t.Errorf("%d are missing: %q", n, lines)
		}
	}
	at := map[string]float64{"dram_roof_share": 0.714, "l2_roof_share": math.NaN(), "fp32_roof_share": 0.03, "tensor_roof_share": 0, "launches": 3}
	below := &kernelwright.Profile{Tool: "ncu", Position: at, Missing: []string{"a"}}
	shares := "profile by Nsight Compute; of the measured ceilings: memory 71 %, FP32 3 %"
	if got := Profiles(kernelwright.Verdict{Profile: below, EagerProfile: below}); !slices.Equal(got, []string{shares + "; this GPU or this Nsight Compute has no a", "eager: " + shares}) {
		t.Errorf("got %q", got)
	}
	many := &kernelwright.Profile{Tool: "ncu", Kernels: make([]kernelwright.KernelProfile, 40)}
	if got := Profiles(kernelwright.Verdict{Profile: many, EagerProfile: static}); len(got) != shownProfiles+3 || got[shownProfiles+1] != "and 28 more" {
		t.Errorf("got %d lines: %q", len(got), got)
	}
}

// Of any GPU is asked what a report shows.
func TestMetricsThatAreShownAreAskedFor(t *testing.T) {
	var asked struct{ Metrics []string }
	if _, err := toml.DecodeFile("../hwfeedback/harness/kwharness/profile/metrics.toml", &asked); err != nil {
		t.Fatal(err)
	}
	names := []string{
		metrics.DRAMRead, metrics.DRAMWritten, metrics.DRAMBusy, metrics.IssueBusy, metrics.TensorBusy, metrics.WarpsActive, metrics.WarpsAllowed, metrics.Registers,
		metrics.LoadSectors, metrics.StoreSectors, metrics.BankConflicts, metrics.SharedWavefronts, metrics.LocalLoaded, metrics.LocalStored,
	}
	for _, s := range metrics.Stalls {
		names = append(names, metrics.StallRatio(s.Name))
	}
	for _, name := range names {
		if !slices.Contains(asked.Metrics, name) {
			t.Errorf("%s is not asked for", name)
		}
	}
}

func TestLaunches(t *testing.T) {
	got := Launches([]kernelwright.Launch{
		{Name: "void softmax<float>(float*)", Count: 1, MS: 0.03, Grid: []int{4096, 1, 1}, Block: []int{256, 1, 1}},
		{Name: "scale", Count: 2, MS: 0.01, Grid: []int{64, 2, 1}, Block: []int{32, 8, 1}},
		{Name: "Memcpy DtoD", Count: 1},
	})
	want := []string{
		"void softmax<float>(float*): 30.0 µs, 75 %, 4096 blocks of 256 threads",
		"scale × 2: 10.0 µs, 25 %, 64 × 2 blocks of 32 × 8 threads",
		"Memcpy DtoD: –, –",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
