package llm

import "strings"

// Services is what all models of a process share.
type Services struct {
	Prices  Prices
	Budget  *Budget // nil: nothing is limited, and nothing booked
	Journal Journal // nil: nothing is recorded
	// Limits are those of providers' accounts, by the provider's name: all models
	// of a provider keep to them together, and each to its Options besides.
	Limits map[string]*Limits
}

// New returns the model of that name with everything round it. From the outside
// in: the journal answers what was answered before, which costs nothing; a retry
// follows what may pass; where a server may hide tools from the model, that is looked
// at; limits hold an attempt back until its turn; the budget
// lets it through, or not, and books it; the deadline ends it. Whoever asks the
// same model shares the one that was returned: its limits are its own. A model that
// the budget can never let through is refused.
func New(name string, o Options, s Services) (Model, error) {
	o, p, err := resolve(name, o)
	if err != nil {
		return nil, err
	}
	// A price that does not say what writing to a cache costs would book too little.
	if p, known := s.Prices.Of(name); known && p.CacheWrite == nil {
		o.PromptCache = new(bool)
	}
	s.Prices = s.Prices.With(name, o)
	if s.Budget != nil {
		s.Budget.with(name, s.Prices)
		if err := s.Budget.Allows(name); err != nil {
			return nil, err
		}
	}
	m, err := Open(name, o)
	if err != nil {
		return nil, err
	}
	m = WithDeadline(m, o.Timeout)
	if s.Budget != nil {
		m = s.Budget.Watch(m, o.MaxTokens, o.Timeout)
	}
	provider, _, _ := strings.Cut(name, ":")
	if account := s.Limits[provider]; account != nil {
		m = account.Watch(m)
	}
	m = NewLimits(o.Concurrency, o.RequestsPerMinute, o.TokensPerMinute).Watch(m)
	if p.open {
		m = withToolCheck(m, o.Log)
	}
	m = WithRetry(m, o.Attempts, nil, o.Log)
	if s.Journal != nil {
		m = WithJournal(m, s.Journal, s.Prices, nil)
	}
	return m, nil
}
