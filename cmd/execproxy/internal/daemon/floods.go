package daemon

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/VictoriaMetrics/metrics"
)

// floods counts connections that were ended for what their peer did, by kind.
type floods struct {
	mu sync.Mutex
	n  map[string]uint64
}

func (f *floods) count(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == nil {
		f.n = make(map[string]uint64)
	}
	f.n[kind]++
}

func (f *floods) write(w io.Writer, name string) {
	f.mu.Lock()
	n := maps.Clone(f.n)
	f.mu.Unlock() // count must not wait for who reads this
	for _, kind := range slices.Sorted(maps.Keys(n)) {
		metrics.WriteCounterUint64(w, fmt.Sprintf("%s{kind=%q}", name, kind), n[kind])
	}
}
