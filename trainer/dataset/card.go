package dataset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
)

// columns describes the columns of a row, in their order.
var columns = [][2]string{
	{"id", "`run-7`, or `run-7-round-2`"},
	{"run", "number of the run in the record"},
	{"round", "the round that the figures are of, from 0"},
	{"task", "fingerprint of the reference's syntax tree"},
	{"task_name", "its name"},
	{"held_out", "true where a gate is played on the task: do not train on it"},
	{"reference", "text of the PyTorch reference"},
	{"device", "`cpu`, `cuda:0`"},
	{"device_name", "its model"},
	{"language", "`cpp`, `cuda` or `triton`"},
	{"strategy", "how the Coder was asked"},
	{"coder", "the author: `builtin`, or a model as `provider:model`"},
	{"judge", "`rules`, `none`, or a model"},
	{"policy", "of an episode of training, the policy's version"},
	{"seed", "of the run's decisions"},
	{"messages", "`role`, `content`, `tool_calls`, `tool_call_id`, as chat templates take them"},
	{"said", "true where the messages were said to a model and by it; else they are made of the record"},
	{"candidate", "source that defines `ModelNew`"},
	{"status", "of the verdict: `certified`, `correct`, `wrong`, `build_failed`, ..."},
	{"reason", "in one sentence"},
	{"certified", "true where the strict verdict was passed as an exported file"},
	{"reward", "-1 not correct, 1 correct, 2 faster than eager, 3 faster than torch.compile, each by 5 %; null where the timing does not tell"},
	{"candidate_ms", "milliseconds"},
	{"speedup", "against the fastest baseline"},
	{"speedup_low", "its interval"},
	{"speedup_high", "its interval"},
	{"against", "that baseline"},
	{"headroom", "share of the time that the roofline needs, 0 to 1"},
	{"rounds", "how many the run has"},
	{"run_status", "`done`, `failed`, ..."},
	{"stop", "what ended the run"},
	{"created", "ISO 8601, UTC"},
}

// card is the README.md of a dataset.
func card(name string, rows Rows, c Counts) string {
	var b strings.Builder
	size := "n<1K"
	for _, s := range []struct {
		from int64
		word string
	}{{1e3, "1K<n<10K"}, {1e4, "10K<n<100K"}, {1e5, "100K<n<1M"}, {1e6, "1M<n<10M"}} {
		if c.Rows >= s.from {
			size = s.word
		}
	}
	fmt.Fprintf(&b, "---\nlicense: other\nlicense_name: see-below\ntask_categories:\n- text-generation\ntags:\n- code\n- cuda\n- pytorch\n- kernels\nsize_categories:\n- %s\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*.parquet\n---\n\n", size)
	of := "A row is a run: the way to its best candidate."
	if rows == Rounds {
		of = "A row is a round: what the Coder was asked, what it answered, and what was measured of it."
	}
	fmt.Fprintf(&b, "# %s\n\nFaster kernels for PyTorch references, with verdicts by measurement. Written by kernelwright %s. %s\n\n", strings.ReplaceAll(name, "\n", " "), kernelwright.Version, of)
	fmt.Fprintf(&b, "## Load\n\n```python\nfrom datasets import load_dataset\n\nrows = load_dataset(\"path/to/this/folder\", split=\"train\")\nrows = rows.filter(lambda row: not row[\"held_out\"] and (row[\"reward\"] or 0) >= 2)\n```\n\n")
	fmt.Fprintf(&b, "## Counts\n\n| what | count |\n|---|---:|\n| rows | %d |\n| runs | %d |\n| tasks | %d |\n| certified rows | %d |\n| bytes of texts | %d |\n", c.Rows, c.Runs, c.Tasks, c.Certified, c.Bytes)
	if c.Secrets > 0 {
		fmt.Fprintf(&b, "| runs left out, for they hold what looks like a secret | %d |\n", c.Secrets)
	}
	for _, t := range []struct {
		head   string
		counts map[string]int64
	}{{"reward", c.Rewards}, {"status", c.Statuses}, {"coder", c.Coders}, {"device", c.Devices}} {
		fmt.Fprintf(&b, "\n| %s | rows |\n|---|---:|\n", t.head)
		names := slices.Sorted(maps.Keys(t.counts))
		slices.SortStableFunc(names, func(x, y string) int { return cmp.Compare(t.counts[y], t.counts[x]) })
		for _, name := range names {
			fmt.Fprintf(&b, "| %s | %d |\n", cell(name), t.counts[name])
		}
	}
	b.WriteString("\n## Columns\n\nWhat is not known is null.\n\n| column | holds |\n|---|---|\n")
	for _, c := range columns {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c[0], c[1])
	}
	b.WriteString("\n## Licence\n\nNo licence is granted by the program that wrote this. References are their authors'. Answers of language models (`coder`, `judge`) fall under the terms of their providers, some of which forbid training on them. See to that before you publish this folder, or train on it.\n")
	return b.String()
}

func cell(text string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ", "\r", " ").Replace(text)
}
