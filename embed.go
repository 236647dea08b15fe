package kernelwright

import _ "embed"

// DefaultConfig is config.toml: every setting with its default. It lives here
// because a file can be embedded only by the package of its own folder.
//
//go:embed config.toml
var DefaultConfig string

// CandidateGuide is docs/candidate.md, for agents that write candidates.
//
//go:embed docs/candidate.md
var CandidateGuide string
