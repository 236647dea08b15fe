package pipeline

import (
	"reflect"
	"strconv"

	"github.com/kernelwright/kernelwright/store"
	"github.com/kernelwright/kernelwright/trainer/gate"
	"github.com/kernelwright/kernelwright/trainer/teach"
)

// Settings are what a pipeline is begun with; they stay what they were.
type Settings struct {
	Small bool `json:"small"`
	// Base is what is trained: empty is a small model from nothing, SmolLM2 that model, "policy:vN"
	// a policy that has been trained before, and anything else the folder of a model.
	Base   string `json:"base"`
	Seed   int64  `json:"seed"`
	Recipe Recipe `json:"recipe"`
	// Unnamed: nobody named Base. It is what served when the pipeline was begun.
	Unnamed bool `json:"unnamed"`
	// Candidate and Opponent are two policies, "policy:vN": nothing is trained, and a gate
	// is held between them.
	Candidate string `json:"candidate,omitempty"`
	Opponent  string `json:"opponent,omitempty"`
}

// Trial reports whether they are those of a gate by itself.
func (s Settings) Trial() bool { return s.Candidate != "" }

// Same reports whether the same command asks for both.
func (s Settings) Same(o Settings) bool {
	if s.Unnamed && o.Unnamed { // what serves may be another one by now
		s.Base = o.Base
	}
	return reflect.DeepEqual(s, o)
}

// Recipe says how much of everything there is. Rates of learning are AdamW's.
type Recipe struct {
	Tasks  map[store.Split]int `json:"tasks"`
	LowMS  float64             `json:"low_ms"` // eager's time
	HighMS float64             `json:"high_ms"`
	// Kinds are the operator kinds of tasks, Ranks the ranks of their inputs, and Shares the
	// shares of tasks by their number of operators; none: those of every set.
	Kinds  []string           `json:"kinds,omitempty"`
	Ranks  []int              `json:"ranks,omitempty"`
	Shares map[string]float64 `json:"shares,omitempty"`

	Pairs      int     `json:"pairs"` // that the built-in Coder writes
	Epochs     int     `json:"epochs"`
	Batch      int     `json:"batch"`
	Parameters int     `json:"parameters"` // of a model from nothing
	Vocabulary int     `json:"vocabulary"`
	Layers     int     `json:"layers"`
	Context    int     `json:"context"` // tokens
	PairsLR    float64 `json:"pairs_lr"`
	// BootstrapProcesses share each update of the bootstrap, where they are more than Processes.
	BootstrapProcesses int `json:"bootstrap_processes,omitempty"`

	WarmupSteps    int     `json:"warmup_steps"`
	AgenticSteps   int     `json:"agentic_steps"`
	TasksPerStep   int     `json:"tasks_per_step"`
	SamplesPerTask int     `json:"samples_per_task"`
	AnswerTokens   int     `json:"answer_tokens"`
	AnswerBytes    int     `json:"answer_bytes"` // of pairs; 0: as long as they are
	ActorLR        float64 `json:"actor_lr"`
	CriticLR       float64 `json:"critic_lr"`
	Lora           int     `json:"lora"` // rank; 0: all weights

	CollectSamples int     `json:"collect_samples"` // of each training task
	Rounds         int     `json:"rounds"`          // of collect and agentic
	RFTEpochs      int     `json:"rft_epochs"`
	RFTLR          float64 `json:"rft_lr"`
	CriticEpochs   int     `json:"critic_epochs"`

	HeldSamples int           `json:"held_samples"` // of each held-out task, in a measurement
	HeldRounds  int           `json:"held_rounds"`
	Gate        gate.Settings `json:"gate"`

	Device      string `json:"device"` // that trains: cpu, cuda or auto
	Processes   int    `json:"processes"`
	Threads     int    `json:"threads"` // of a process on a CPU; 0: PyTorch's choice
	MicroTokens int    `json:"micro_tokens"`
	SaveEvery   int    `json:"save_every"` // steps of PPO
}

// Default is the recipe of a night: CUDA Agent's where a figure of it is known (arXiv
// 2602.24286, section 4), with learning rates for a small model. docs/training.md
// says what differs and why.
func Default() Recipe {
	return Recipe{
		Tasks: map[store.Split]int{store.TrainSplit: 256, store.TaughtSplit: 16_000/teach.DefaultEach - 256, store.ValSplit: 0, store.CompositionsSplit: gate.DefaultSettings.Held(), store.KindsSplit: gate.DefaultSettings.Held()},
		LowMS: 1, HighMS: 100,
		Pairs: 16_000, Epochs: 2, Batch: 64, Parameters: 4_000_000, Vocabulary: 2048, Layers: 6, Context: 8192, PairsLR: 5e-4,
		WarmupSteps: 150, AgenticSteps: 150, TasksPerStep: 128, SamplesPerTask: 8, AnswerTokens: 1024, ActorLR: 3e-6, CriticLR: 6e-6,
		CollectSamples: 4, Rounds: 4, RFTEpochs: 1, RFTLR: 1e-5, CriticEpochs: 1,
		HeldSamples: 1, HeldRounds: 1, Gate: gate.DefaultSettings,
		Device: "auto", Processes: 1, MicroTokens: 8192, SaveEvery: 5,
	}
}

// smallKinds are few and alike, so that a model that knew nothing minutes ago can be
// right on compositions that it never saw.
var smallKinds = []string{"abs", "exp", "gelu", "hardswish", "neg", "relu", "sigmoid", "silu", "sin", "tanh"}

// Small is the recipe of first contact: minutes on two cores. The held-out sets are
// as large as a table needs that says anything. Its programs have one thread each: the
// products of so small a model are no quicker on two, and many times slower where
// another program takes one of the cores. The longest training is two processes instead,
// each with half of the rows of an update.
func Small() Recipe {
	return Recipe{
		Tasks: map[store.Split]int{store.TrainSplit: 8, store.TaughtSplit: 96, store.ValSplit: 0, store.CompositionsSplit: gate.SmallSettings.Held(), store.KindsSplit: gate.SmallSettings.Held()},
		LowMS: 0.05, HighMS: 0.5, Kinds: smallKinds, Ranks: []int{2}, Shares: map[string]float64{"2": 75, "3": 25},
		Pairs: 312, Epochs: 10, Batch: 2, Parameters: 800_000, Vocabulary: 2048, Layers: 3, Context: 4096, PairsLR: 3e-3, BootstrapProcesses: 2,
		WarmupSteps: 2, AgenticSteps: 2, TasksPerStep: 4, SamplesPerTask: 4, AnswerTokens: 400, AnswerBytes: 1400, ActorLR: 3e-5, CriticLR: 3e-4,
		CollectSamples: 2, Rounds: 1, RFTEpochs: 2, RFTLR: 3e-4, CriticEpochs: 4,
		HeldSamples: 1, HeldRounds: 1, Gate: gate.SmallSettings,
		Device: "cpu", Processes: 1, Threads: 1, MicroTokens: 8192, SaveEvery: 1,
	}
}

// ForModel is a recipe for a model that was trained before: it is larger, and needs less
// of everything to learn a form.
func (r Recipe) ForModel() Recipe {
	r.Epochs, r.Batch, r.PairsLR, r.Lora, r.Context, r.BootstrapProcesses = 2, 8, 5e-4, 16, 8192, 0
	r.ActorLR, r.CriticLR, r.RFTLR = 3e-5, 3e-5, 1e-4
	return r
}

// ForTrial is a recipe of a gate by itself: held-out tasks alone are made.
func (r Recipe) ForTrial() Recipe {
	r.Tasks = map[store.Split]int{store.CompositionsSplit: r.Gate.Held(), store.KindsSplit: r.Gate.Held()}
	return r
}

// Set is the name of the set of tasks of an attempt at synthesise.
func Set(pipeline int64, attempt int) string {
	name := "pipeline-" + strconv.FormatInt(pipeline, 10)
	if attempt > 1 {
		name += "-" + strconv.Itoa(attempt)
	}
	return name
}

// HeldOut is what a policy reached on tasks that it was never trained on.
type HeldOut struct {
	Compositions *Rates `json:"compositions"`
	Kinds        *Rates `json:"kinds"`
}

// Rates are shares of N episodes, and their mean reward.
type Rates struct {
	N             int     `json:"n"`
	Built         float64 `json:"built"`
	Correct       float64 `json:"correct"`
	FasterEager   float64 `json:"faster_eager"`
	FasterCompile float64 `json:"faster_compile"`
	Reward        float64 `json:"reward"`
}

// Outputs are what a stage left. Paths are within the data folder.
type Outputs struct {
	Set          string `json:"set,omitempty"`
	Pairs        string `json:"pairs,omitempty"`
	Policy       string `json:"policy,omitempty"`
	Critic       string `json:"critic,omitempty"`
	Trajectories string `json:"trajectories,omitempty"`
	// Base is what the policy was first trained from, and License its license, where known.
	Base    string `json:"base,omitempty"`
	License string `json:"license,omitempty"`

	HeldOut *HeldOut `json:"held_out,omitempty"`
	// Counts are numbers worth telling, by name.
	Counts map[string]float64 `json:"counts,omitempty"`

	// Novelty is how much of the right answers at the gate is the policy's own.
	Novelty *teach.Novelty `json:"novelty,omitempty"`

	Decision string `json:"decision,omitempty"` // of the gate: promoted, refused
	Gate     int64  `json:"gate,omitempty"`     // its number; 0: none had to be held
	Version  int64  `json:"version,omitempty"`  // of the policy that was decided on
	Opponent int64  `json:"opponent,omitempty"` // that it was held against
	Reason   string `json:"reason,omitempty"`   // of the decision
}
