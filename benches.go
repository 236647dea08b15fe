package kernelwright

import "encoding/json"

// Bench is a list of references, each of which is optimised under every one of
// its configurations with every one of its seeds. Each of these is a run.
type Bench struct {
	ID             int64           `json:"id"`
	References     []Reference     `json:"references"`
	Configurations []Configuration `json:"configurations"`
	Seeds          []int64         `json:"seeds"`
	Device         string          `json:"device"`       // as the command line named it first
	DeviceClass    string          `json:"device_class"` // Device.Class of all its runs
	Baselines      []string        `json:"baselines"`    // that PyTorch is measured as
	Precision      string          `json:"precision"`
	Command        []string        `json:"command"` // as it was typed first
	Version        string          `json:"version"` // of kernelwright
	CreatedMS      int64           `json:"created" time:"ms"`
	FinishedMS     int64           `json:"finished,omitempty" time:"ms"` // 0 while some run has not ended
}

// Reference is a reference file of a bench, as it was when the bench began.
type Reference struct {
	Name   string `json:"name"` // its path below the folder that they share, without extension
	Path   string `json:"path"` // absolute
	SHA256 string `json:"sha256"`
}

// Configuration is what may differ between the runs that a bench compares.
type Configuration struct {
	Strategy string   `json:"strategy"`
	Coder    string   `json:"coder"`
	Judge    string   `json:"judge"`      // or the mode, where that asks none
	Mode     string   `json:"judge_mode"` // what the Judge may speak about
	Language Language `json:"language"`
	Rounds   int      `json:"rounds"`                          // at most
	Lessons  bool     `json:"lessons,omitempty"`               // its runs are told what earlier runs learned
	Metrics  string   `json:"metrics,omitempty"`               // what a profile has, where not the selection: full
	Settings string   `json:"settings,omitempty" holds:"json"` // the strategy's settings as JSON, as its runs record them
}

// Member is a run of a bench: of which of its references, under which of its
// configurations, both counted from 0.
type Member struct {
	Reference     int   `json:"reference"`
	Configuration int   `json:"configuration"`
	Seed          int64 `json:"seed"`
	RunID         int64 `json:"run"`
}

// Key is the same for two benches that ask for the same runs on devices of the
// same class, by the same version.
func (b Bench) Key() string {
	type file struct{ Path, SHA256 string }
	files := make([]file, len(b.References))
	for i, r := range b.References {
		files[i] = file{r.Path, r.SHA256}
	}
	text, err := json.Marshal([]any{files, b.Configurations, b.Seeds, b.DeviceClass, b.Baselines, b.Precision, b.Version})
	if err != nil { // texts and whole numbers only: cannot fail
		panic(err)
	}
	return HashText(string(text))
}
