package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kernelwright/kernelwright"
	"github.com/kernelwright/kernelwright/config"
	"github.com/kernelwright/kernelwright/forge"
	"github.com/kernelwright/kernelwright/report"
)

// How many programs an exhaustive search tries of each task, where nobody says, and at
// most: a run has no more rounds.
const (
	defaultSearch = 100
	mostSearched  = 10000
)

// searches is what --strategy asks for.
type searches struct {
	wanted bool   // the exhaustive search
	alone  bool   // and no other strategy
	others string // the other strategies
}

// searches reads --strategy and --budget. The exhaustive search is a configuration of
// its own: no other flag of the matrix tells anything of it.
func (c benchCmd) searches() (s searches, err error) {
	if c.Strategy == "" {
		if c.Budget != 0 {
			return s, usage("--budget is of the exhaustive search alone", "give --strategy exhaustive, or leave --budget out; --rounds bounds other strategies")
		}
		return s, nil
	}
	names, err := listed("--strategy", c.Strategy, func(text string) (string, error) { return text, nil })
	if err != nil {
		return s, err
	}
	rest := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == forge.ExhaustiveStrategy })
	s = searches{len(rest) < len(names), len(rest) == 0, strings.Join(rest, ",")}
	switch {
	case c.Budget != 0 && !s.wanted:
		return s, usage("--budget is of the exhaustive search alone", "give --strategy exhaustive, or leave --budget out; --rounds bounds other strategies")
	case c.Budget < 0 || c.Budget > mostSearched:
		return s, usage(fmt.Sprintf("--budget is %d", c.Budget), fmt.Sprintf("it takes a number of programs from 1 to %d", mostSearched))
	}
	if !s.alone {
		return s, nil
	}
	for _, x := range c.axes() {
		if x.flag != "--strategy" && x.text != "" {
			return s, usage(x.flag+" tells nothing of the exhaustive search, and no other strategy is named", "leave it out, or compare with another strategy: --strategy rounds,exhaustive")
		}
	}
	return s, nil
}

// exhaustiveFlags are the settings of the search, as far as they are told as such.
func exhaustiveFlags() map[string]string {
	return map[string]string{
		"rounds.strategy": forge.RoundsStrategy, "coder.name": builtinCoder, "judge.name": kernelwright.NoJudge, "rounds.judge": string(forge.JudgeNone),
		"judge.lessons": "false", "rounds.language": "auto", "evaluation.profile": "false",
	}
}

// exhaustive is the search's configuration.
func (c benchCmd) exhaustive(conf config.Config) config.Config {
	conf.Rounds.Strategy, conf.Rounds.Max = forge.ExhaustiveStrategy, defaultSearch
	if c.Budget > 0 {
		conf.Rounds.Max = c.Budget
	}
	return conf
}

// searched is what an exhaustive search came to, nil of another run.
func (r *room) searched(ctx context.Context, d report.Data) (*report.Searched, error) {
	if d.Run.Strategy != forge.ExhaustiveStrategy {
		return nil, nil
	}
	space, err := r.store.Space(ctx, d.Run.ID)
	if space == nil || err != nil {
		return nil, err
	}
	return report.ReduceSpace(d, *space), nil
}
