package llmtest

import (
	"crypto/sha256"
	"sync"

	"github.com/kernelwright/kernelwright/llm"
)

// What Anthropic says of its cache: nothing shorter is kept, and from a mark it
// looks so many blocks back for what it has.
const (
	leastCached = 1024 // tokens
	cacheReach  = 20   // blocks
)

// PromptCache counts what requests to Anthropic take, as its cache of prompts
// would: what stands before a marked block is kept, and what begins a later request
// is read from there. Nothing expires. A token is three bytes of JSON.
type PromptCache struct {
	mu   sync.Mutex
	kept map[[sha256.Size]byte]bool
}

// Usage is what a prompt takes, and what it leaves in the cache.
func (c *PromptCache) Usage(body map[string]any) llm.Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		c.kept = make(map[[sha256.Size]byte]bool)
	}
	var ends []int64 // tokens up to and with each block
	var hashes [][sha256.Size]byte
	var marks []int
	chain, total := sha256.New(), int64(0)
	add := func(b object, role string) {
		_, marked := b["cache_control"]
		bare := make(object)
		for key, value := range b {
			if key != "cache_control" {
				bare[key] = value
			}
		}
		text := role + textOf(bare)
		chain.Write([]byte(text))
		total += int64(len(text)+2) / 3
		if marked {
			marks = append(marks, len(ends))
		}
		ends = append(ends, total)
		hashes = append(hashes, [sha256.Size]byte(chain.Sum(nil)))
	}
	for _, t := range list(body, "tools") {
		add(t, "tool")
	}
	if text, ok := body["system"].(string); ok {
		add(object{"type": "text", "text": text}, "system")
	}
	for _, b := range list(body, "system") {
		add(b, "system")
	}
	for _, m := range list(body, "messages") {
		role, _ := m["role"].(string)
		for _, b := range list(m, "content") {
			add(b, role)
		}
	}
	u := llm.Usage{In: total}
	written := int64(0)
	for _, at := range marks {
		for i := at; i >= 0 && i > at-cacheReach; i-- {
			if c.kept[hashes[i]] {
				u.CachedIn = max(u.CachedIn, ends[i])
				break
			}
		}
		if ends[at] >= leastCached {
			written = ends[at]
		}
	}
	for _, at := range marks {
		c.kept[hashes[at]] = c.kept[hashes[at]] || ends[at] >= leastCached
	}
	u.CacheWrite = max(written-u.CachedIn, 0)
	return u
}
