package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/keyhome"
)

// A keyMeter counts what one key signed.
type keyMeter struct {
	meter
	key  string // the beginning of its fingerprint
	home string // file, tpm or pkcs11
}

// Homes are what homes of keys need of a process of ours.
func Homes(p Places, environ []string) (keyhome.Options, error) {
	self, err := os.Executable()
	if err != nil {
		return keyhome.Options{}, fmt.Errorf("finding the execproxy binary: %w", err)
	}
	return keyhome.Options{
		Module: []string{self, ModuleCommand}, Program: program(self), Environ: environ, State: p.State, Kept: &keyhome.Kept{},
		Getenv: func(name string) string { return variable(environ, name) },
	}, nil
}

// program is what is executed to run ourselves once more: on Linux the very file
// that runs, also when another version has taken its name.
func program(self string) string {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe"
	}
	return self
}

// variable is the last value of name, as programs see it.
func variable(environ []string, name string) (value string) {
	for _, e := range environ {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

// setKey has the next generation made with k.
func (id *identity) setKey(k *keyhome.Key) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if old := id.key; old != nil && !old.Shares(k) {
		id.reopened += old.Stats().Reopened
	}
	id.key, id.who = k, k.Leaf().Subject.CommonName
	if print := fingerprint(k); id.meterOf(print) == nil {
		// Of the keys before the last nobody asks, and Prometheus keeps every label.
		id.meters = append(id.meters[max(0, len(id.meters)-1):], &keyMeter{key: print, home: k.Home()})
	}
}

// meterOf needs mu.
func (id *identity) meterOf(print string) *keyMeter {
	for _, m := range id.meters {
		if m.key == print {
			return m
		}
	}
	return nil
}

// fingerprint is the beginning of the key's: enough to tell the keys of one proxy
// apart.
func fingerprint(k *keyhome.Key) string {
	all := k.Fingerprint()
	return all[:min(len(all), 16)]
}

// certificate is the key's, nil without one. What it signs is counted.
func (id *identity) certificate() *tls.Certificate {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.key == nil {
		return id.pair
	}
	return id.key.TLSCertificate(metered{id.key, &id.meterOf(fingerprint(id.key)).meter, id.lookAgain})
}

func (id *identity) current() *keyhome.Key {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.key
}

func (id *identity) notAfter() *time.Time {
	k := id.current()
	if k == nil {
		id.mu.Lock()
		defer id.mu.Unlock()
		if id.pair == nil {
			return nil
		}
		t := id.pair.Leaf.NotAfter
		return &t
	}
	t := k.Leaf().NotAfter
	return &t
}

// watchKey takes over a key or a chain that somebody else puts in its place.
func (id *identity) watchKey(ctx context.Context, changed func() error) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-id.look:
			}
			id.reload(ctx, changed)
		}
	})
	err := keyhome.Watch(ctx, id.config, id.homes, id.current, func(k *keyhome.Key, err error) { id.take(k, err, changed) })
	if err != nil && ctx.Err() == nil {
		id.log.Error("the key's files are no longer watched", "error", err)
	}
}

// reload looks at the key's home, and takes over what is new there.
func (id *identity) reload(ctx context.Context, changed func() error) {
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	k, err := id.current().Again(ctx, id.config, id.homes)
	if err == nil || ctx.Err() == nil {
		id.take(k, err, changed)
	}
}

// take brings a key into use that is another one than before.
func (id *identity) take(k *keyhome.Key, err error, changed func() error) {
	if err != nil {
		id.log.Error("the changed key is not used, the old one stays", "error", err)
		return
	}
	id.changing.Lock()
	defer id.changing.Unlock()
	old := id.current()
	// Our own renewal; or what our renewal could not replace.
	if id.same(k) || id.unstored && fingerprint(old) == fingerprint(k) && !k.Leaf().NotAfter.After(old.Leaf().NotAfter) {
		if !k.Shares(old) {
			_ = k.Close()
		}
		return
	}
	id.unstored = false
	for _, w := range k.Warnings() {
		id.log.Warn(w)
	}
	id.setKey(k)
	id.log.Info("key reloaded", "identity", id.name(), "notAfter", k.Leaf().NotAfter)
	_ = changed() // it has logged why
	if !k.Shares(old) {
		_ = old.Close()
	}
}

// lookAgain has the key's home looked at.
func (id *identity) lookAgain() {
	select {
	case id.look <- struct{}{}:
	default: // it will be
	}
}

// keyStatus tells of the key, nil without one.
func (id *identity) keyStatus() *KeyStatus {
	id.mu.Lock()
	defer id.mu.Unlock()
	k := id.key
	if k == nil {
		return nil
	}
	m, h := id.meterOf(fingerprint(k)), k.Stats()
	return &KeyStatus{
		Home: k.Home(), Location: k.Location(), Kind: k.Kind(),
		Signatures: m.good.Load(), Failures: m.bad.Load(), Queued: h.Queued, Reopened: id.reopened + h.Reopened,
	}
}

// same reports a key that is in use already.
func (id *identity) same(k *keyhome.Key) bool {
	now := id.current()
	return fingerprint(now) == fingerprint(k) && now.Leaf().Equal(k.Leaf())
}
