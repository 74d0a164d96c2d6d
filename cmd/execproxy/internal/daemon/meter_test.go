package daemon

import (
	"crypto"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

type failingKey struct{ crypto.Signer }

func (failingKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("no token")
}

// The buckets are cumulative, and what took longest is in the last one alone.
func TestMeter(t *testing.T) {
	var m meter
	m.observe(50*time.Microsecond, nil)
	m.observe(3*time.Millisecond, nil)
	m.observe(time.Minute, errors.New("hung"))
	if _, err := (metered{failingKey{}, &m, nil}).Sign(nil, nil, nil); err == nil {
		t.Error("the key's error is lost")
	}
	if m.good.Load() != 2 || m.bad.Load() != 2 || m.waiting.Load() != 0 {
		t.Errorf("%d good, %d bad, %d waiting", m.good.Load(), m.bad.Load(), m.waiting.Load())
	}
	var b strings.Builder
	m.write(&b, "x_seconds", `home="tpm"`)
	for _, want := range []string{
		`x_seconds_bucket{home="tpm",le="0.0001"} 2`, // the failing key failed at once
		`x_seconds_bucket{home="tpm",le="0.0025"} 2`,
		`x_seconds_bucket{home="tpm",le="0.005"} 3`,
		`x_seconds_bucket{home="tpm",le="10"} 3`,
		`x_seconds_bucket{home="tpm",le="+Inf"} 4`,
		`x_seconds_count{home="tpm"} 4`,
		`x_seconds_sum{home="tpm"} 60.003`,
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, b.String())
		}
	}
}
