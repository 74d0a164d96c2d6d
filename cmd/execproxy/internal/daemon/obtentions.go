package daemon

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
)

// Obtention is how often plugins that count under one name were answered, and how
// long that took them, from their start to the answer.
type Obtention struct {
	Provider string  `json:"provider"`
	Success  uint64  `json:"success"`
	Error    uint64  `json:"error"`
	Seconds  float64 `json:"seconds"` // of all of them together
}

const (
	// noProvider is the name of plugins that were given none.
	noProvider = "none"
	// mostProviders bounds the label; the rest are one.
	mostProviders  = 16
	otherProviders = "other"
)

// latencies are the histogram's bounds, in seconds: from a proxy that is asked to one
// that has to be started, with a slow key and a slow way to the cluster.
var latencies = [...]float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

// A tally is the histogram of one provider and result. Failures before the proxy
// started have no time.
type tally struct {
	count   uint64
	timed   uint64
	seconds float64
	upTo    [len(latencies)]uint64
}

type tallyKey struct{ provider, result string }

// obtentions counts the documents that plugins asked for. Its zero value is ready.
type obtentions struct {
	mu      sync.Mutex
	tallies map[tallyKey]*tally
}

// count counts one answer to a plugin. One that is sent away because the proxy ends
// is counted by the next.
func (o *obtentions) count(ask Ask, err error) {
	if errors.Is(err, errEnding) {
		return
	}
	result := "success"
	if err != nil {
		result = "error"
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tally(ask.Provider, result)
	t.count++
	if ask.Began.IsZero() {
		return
	}
	s := max(0, time.Since(ask.Began).Seconds())
	t.timed++
	t.seconds += s
	for i, bound := range latencies {
		if s <= bound {
			t.upTo[i]++
		}
	}
}

// tally finds or makes a tally; mu is held.
func (o *obtentions) tally(provider, result string) *tally {
	if o.tallies == nil {
		o.tallies = map[tallyKey]*tally{}
	}
	switch _, known := o.tallies[tallyKey{provider, result}]; {
	case provider == "":
		provider = noProvider
	case known:
	case len(o.tallies) >= 2*mostProviders, !config.ProviderName(provider):
		provider = otherProviders
	}
	if o.tallies[tallyKey{provider, result}] == nil {
		// Both, so that a rate has a beginning.
		o.tallies[tallyKey{provider, "success"}], o.tallies[tallyKey{provider, "error"}] = &tally{}, &tally{}
	}
	return o.tallies[tallyKey{provider, result}]
}

func (o *obtentions) keys() []tallyKey {
	return slices.SortedFunc(maps.Keys(o.tallies), func(a, b tallyKey) int {
		return cmp.Or(cmp.Compare(a.provider, b.provider), cmp.Compare(b.result, a.result))
	})
}

// status is the counts for `execproxy status`.
func (o *obtentions) status() (out []Obtention) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range o.keys() {
		t := o.tallies[k]
		if k.result == "success" {
			out = append(out, Obtention{Provider: k.provider, Success: t.count, Seconds: t.seconds})
			continue
		}
		out[len(out)-1].Error = t.count
		out[len(out)-1].Seconds += t.seconds
	}
	return out
}

// write writes the counts in Prometheus' text format.
func (o *obtentions) write(w io.Writer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range o.keys() {
		t := o.tallies[k]
		labels := fmt.Sprintf("provider=%q,result=%q", k.provider, k.result)
		metrics.WriteCounterUint64(w, "execproxy_obtentions_total{"+labels+"}", t.count)
		const name = "execproxy_obtention_duration_seconds"
		for i, bound := range latencies {
			metrics.WriteCounterUint64(w, fmt.Sprintf("%s_bucket{%s,le=%q}", name, labels, strconv.FormatFloat(bound, 'g', -1, 64)), t.upTo[i])
		}
		metrics.WriteCounterUint64(w, name+"_bucket{"+labels+`,le="+Inf"}`, t.timed)
		metrics.WriteCounterFloat64(w, name+"_sum{"+labels+"}", t.seconds)
		metrics.WriteCounterUint64(w, name+"_count{"+labels+"}", t.timed)
	}
}

// figures is what a plugin says of itself to the proxy that it asks.
func (a *Ask) figures() string {
	q := url.Values{}
	if a.Provider != "" {
		q.Set("provider", a.Provider)
	}
	if !a.Began.IsZero() {
		q.Set("elapsed", time.Since(a.Began).String())
	}
	return q.Encode()
}

// askedBy reads figures. A plugin's word is taken for a time that it can have waited.
func askedBy(q url.Values, arrived time.Time) (provider string, began time.Time) {
	elapsed, err := time.ParseDuration(q.Get("elapsed"))
	if err != nil || elapsed < 0 || elapsed > 2*askTimeout {
		return q.Get("provider"), time.Time{}
	}
	return q.Get("provider"), arrived.Add(-elapsed)
}

// A proxy that cannot start counts nothing, and its plugin is gone with its answer. So
// the plugin notes the failure in a file, which the next proxy of that identity takes
// over. The lock of the start is held for both.

// failurePath is where that stands.
func failurePath(p Places, id string) string { return filepath.Join(p.State, "failed", id) }

func noteFailure(path, provider string) {
	counts := failures(path)
	if provider == "" {
		provider = noProvider
	}
	if _, ok := counts[provider]; !ok && len(counts) >= mostProviders {
		provider = otherProviders
	}
	counts[provider]++
	text, err := json.Marshal(counts)
	if err != nil {
		return
	}
	writeNote(path, text) // a failure that is not counted was still told
}

func failures(path string) map[string]uint64 {
	counts := map[string]uint64{}
	if text, _ := readNote(path); json.Unmarshal(text, &counts) != nil || counts == nil {
		return map[string]uint64{}
	}
	return counts
}

// recall takes over what was noted before this proxy started.
func (o *obtentions) recall(path string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for provider, n := range failures(path) {
		o.tally(provider, "error").count += n
	}
	_ = os.Remove(path) // mostly there is none
}
