package kernelwright

// Names that agents go by.
const (
	PolicyPrefix   = "policy:"   // begins those of policies that were trained here
	TrainingPrefix = "training:" // begins those of policies in training
	NoJudge        = "none"      // the Judge of runs in which none is asked
)

// Bounds of strategies' settings. A beam asks for a generation at once; a talk needs
// room for a reference, a candidate and a few turns.
const (
	MaxBeam           = 64
	MaxReactTurns     = 2000
	LeastReactContext = 16_000 // tokens
	MaxReactContext   = 10_000_000
)

// The milestones of CUDA Agent's reward (arXiv 2602.24286).
const (
	RewardNotCorrect        = -1
	RewardCorrect           = 1
	RewardFasterThanEager   = 2
	RewardFasterThanCompile = 3 // than eager as well
)
