package enroll

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A machine has a certificate and renews it.
type machine struct {
	t   *testing.T
	a   *api
	n   *network
	r   *Renewer
	log bytes.Buffer

	mu       sync.Mutex
	key      crypto.Signer
	current  *x509.Certificate
	at       []time.Time // of renewals
	storeErr error
	keyErr   error
	open     int // keys handed out and not given back
	stop     func()
	asleep   atomic.Int64 // by how much the wall clock is ahead
}

// newMachine is one with a certificate for ttl. It does not run yet.
func newMachine(t *testing.T, ttl time.Duration) *machine {
	m := &machine{t: t, a: newAPI(t), key: newKey(t)}
	m.a.approves, m.a.signs = true, true
	m.current = m.certify(ttl)
	c, n := newClient(t, m.a)
	m.n = n
	m.r = &Renewer{Client: c, clock: func() time.Time { return time.Now().Add(time.Duration(m.asleep.Load())) },
		Logger: slog.New(slog.NewTextHandler(&m.log, nil)),
		Current: func() *x509.Certificate {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.current
		},
		Key: func(context.Context) (crypto.Signer, func(), error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.keyErr != nil {
				return nil, nil, m.keyErr
			}
			m.open++
			return m.key, func() { m.mu.Lock(); m.open--; m.mu.Unlock() }, nil
		},
		Store: func(_ context.Context, chain [][]byte) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.storeErr != nil {
				return m.storeErr
			}
			if m.open != 1 {
				t.Errorf("stored with %d keys open", m.open)
			}
			c, err := x509.ParseCertificate(chain[0])
			m.current, m.at = c, append(m.at, time.Now())
			return err
		},
	}
	return m
}

func (m *machine) certify(ttl time.Duration) *x509.Certificate {
	csr, err := parseRequest(newOrder(m.t, m.key).CSR)
	must(m.t, err)
	block, _ := pem.Decode(m.a.certificate(csr, ttl))
	c, err := x509.ParseCertificate(block.Bytes)
	must(m.t, err)
	return c
}

func (m *machine) run() {
	ctx, cancel := context.WithCancel(m.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.r.Run(ctx); err != nil {
			m.t.Error(err)
		}
	}()
	m.stop = func() {
		cancel()
		<-done
		if m.open != 0 {
			m.t.Errorf("%d keys were not given back", m.open)
		}
	}
	m.t.Cleanup(func() { m.stop() })
	synctest.Wait()
}

// restart is another process with the same certificate.
func (m *machine) restart() {
	m.stop()
	old := m.r
	m.r = &Renewer{Client: old.Client, Current: old.Current, Key: old.Key, Store: old.Store, clock: old.clock, Logger: old.Logger,
		SignerName: old.SignerName, Expiration: old.Expiration, RenewBefore: old.RenewBefore}
	m.run()
}

// until sleeps to a part of the certificate's life.
func (m *machine) until(part float64) {
	m.t.Helper()
	c := m.r.Current()
	at := c.NotBefore.Add(time.Duration(float64(c.NotAfter.Sub(c.NotBefore)) * part))
	if time.Until(at) < 0 {
		m.t.Fatalf("%v is over", part)
	}
	time.Sleep(time.Until(at))
	synctest.Wait()
}

func (m *machine) expectRenewed(n int) {
	m.t.Helper()
	synctest.Wait()
	if len(m.at) != n || m.r.State().Renewed != uint64(n) {
		m.t.Fatalf("renewed %d times, state %+v", len(m.at), m.r.State())
	}
}
