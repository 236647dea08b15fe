package llm

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"
)

// Price is what a model's tokens cost, in USD for a million.
type Price struct {
	In         float64  `toml:"in" json:"in"`
	CachedIn   *float64 `toml:"cached_in" json:"cached_in"`     // read from a cache; nil: as In
	CacheWrite *float64 `toml:"cache_write" json:"cache_write"` // written to one; nil: as In
	Out        float64  `toml:"out" json:"out"`                 // reasoning included
	AsOf       string   `toml:"as_of" json:"as_of"`             // the day that it was looked up: "2026-11-23"
}

// Prices is what is known of prices, by "provider:model". A name may end in
// "*", which stands for any rest; the longest name that fits counts. A model
// that no name fits has no price: nothing is guessed.
type Prices map[string]Price

// Of returns the price of a model, and whether it is known.
func (p Prices) Of(model string) (Price, bool) {
	if price, ok := p[model]; ok {
		return price, true
	}
	best, found := "", false
	for name := range p {
		prefix, wild := strings.CutSuffix(name, "*")
		if wild && strings.HasPrefix(model, prefix) && (!found || len(name) > len(best)) {
			best, found = name, true
		}
	}
	return p[best], found
}

// With returns the prices with that of a model on this machine, whose address is
// a loopback one: 0, unless one is written.
func (p Prices) With(model string, o Options) Prices {
	if _, known := p.Of(model); known || !onThisMachine(model, o) {
		return p
	}
	return p.and(model, Price{})
}

func (p Prices) and(model string, price Price) Prices {
	all := maps.Clone(p)
	if all == nil {
		all = Prices{}
	}
	all[model] = price
	return all
}

// Cost is what a usage costs in USD, or nil where the price is not known.
func (p Prices) Cost(model string, u Usage) *float64 {
	price, ok := p.Of(model)
	if !ok {
		return nil
	}
	usd := price.cost(u)
	return &usd
}

func (p Price) cost(u Usage) float64 {
	fresh := u.In - u.CachedIn - u.CacheWrite
	return (float64(fresh)*p.In + float64(u.CachedIn)*p.cachedIn() + float64(u.CacheWrite)*p.cacheWrite() + float64(u.Out)*p.Out) / 1e6
}

func (p Price) cachedIn() float64   { return *cmp.Or(p.CachedIn, &p.In) }
func (p Price) cacheWrite() float64 { return *cmp.Or(p.CacheWrite, &p.In) }

// worst is what that many tokens cost at most, whatever of them comes from a cache
// or goes to one.
func (p Price) worst(in, out int64) float64 {
	return (float64(in)*max(p.In, p.cachedIn(), p.cacheWrite()) + float64(out)*p.Out) / 1e6
}

// Validate reports the first entry that is no price. Its text begins with the
// name.
func (p Prices) Validate() error {
	for name, price := range p {
		if i := strings.IndexByte(name, '*'); i >= 0 && i != len(name)-1 {
			return fmt.Errorf("%q: a * may stand at the end only", name)
		}
		for _, v := range []float64{price.In, price.cachedIn(), price.cacheWrite(), price.Out} {
			if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("%q: %v is no price in USD for a million tokens", name, v)
			}
		}
		if _, err := time.Parse(time.DateOnly, price.AsOf); err != nil {
			return fmt.Errorf("%q: as_of is %q: say the day that the price was looked up, such as %q", name, price.AsOf, "2026-11-23")
		}
	}
	return nil
}
