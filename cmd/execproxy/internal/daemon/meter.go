package daemon

import (
	"crypto"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/execproxy/execproxy/signer/pkcs11"
)

// signingBuckets are upper bounds in seconds: a file's key takes microseconds, a
// token's or a TPM's milliseconds, a lost one up to its timeout.
var signingBuckets = [...]float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

// A meter counts what private keys are asked to sign, over all generations.
type meter struct {
	good, bad atomic.Uint64
	waiting   atomic.Int64 // asked and not answered
	nanos     atomic.Uint64
	buckets   [len(signingBuckets) + 1]atomic.Uint64 // the last holds what took longer
}

// A metered key tells m of its signatures. gone is called when the home has no such
// key any more: somebody else may have put another in its place.
type metered struct {
	crypto.Signer
	m    *meter
	gone func()
}

func (k metered) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	begin := time.Now()
	k.m.waiting.Add(1)
	sig, err := k.Signer.Sign(rand, digest, opts)
	k.m.waiting.Add(-1)
	k.m.observe(time.Since(begin), err)
	if errors.Is(err, pkcs11.ErrNoKey) {
		k.gone()
	}
	return sig, err
}

func (m *meter) observe(took time.Duration, err error) {
	if err != nil {
		m.bad.Add(1)
	} else {
		m.good.Add(1)
	}
	m.nanos.Add(uint64(max(took, 0)))
	i := 0
	for i < len(signingBuckets) && took.Seconds() > signingBuckets[i] {
		i++
	}
	m.buckets[i].Add(1)
}

// write prints the histogram in Prometheus' text format. What comes in while it
// is written is in it whole or not at all, but for the sum.
func (m *meter) write(w io.Writer, name, labels string) {
	var n uint64
	for i := range m.buckets {
		n += m.buckets[i].Load()
		le := "+Inf"
		if i < len(signingBuckets) {
			le = strconv.FormatFloat(signingBuckets[i], 'g', -1, 64)
		}
		fmt.Fprintf(w, "%s_bucket{%s,le=%q} %d\n", name, labels, le, n)
	}
	fmt.Fprintf(w, "%s_sum{%s} %g\n", name, labels, time.Duration(m.nanos.Load()).Seconds())
	fmt.Fprintf(w, "%s_count{%s} %d\n", name, labels, n)
}

// writeMetrics tells of the keys, each by the beginning of its fingerprint.
func (id *identity) writeMetrics(w io.Writer) {
	id.mu.Lock()
	meters, key, reopened := slices.Clone(id.meters), id.key, id.reopened
	id.mu.Unlock()
	for _, m := range meters {
		labels := fmt.Sprintf("home=%q,key=%q", m.home, m.key)
		metrics.WriteCounterUint64(w, "execproxy_key_signatures_total{"+labels+`,result="ok"}`, m.good.Load())
		metrics.WriteCounterUint64(w, "execproxy_key_signatures_total{"+labels+`,result="error"}`, m.bad.Load())
		metrics.WriteGaugeUint64(w, "execproxy_key_signatures_in_flight{"+labels+"}", uint64(max(m.waiting.Load(), 0)))
		m.write(w, "execproxy_key_signature_seconds", labels)
	}
	if key != nil {
		s := key.Stats()
		metrics.WriteGaugeUint64(w, "execproxy_key_queue_depth", uint64(max(s.Queued, 0)))
		metrics.WriteCounterUint64(w, "execproxy_key_reopened_total", reopened+s.Reopened)
	}
}
