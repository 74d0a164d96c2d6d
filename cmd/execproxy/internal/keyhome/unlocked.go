package keyhome

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/signer"
)

// triedFor is how long a key that wants a password is not tried without one. A TPM
// counts that as a wrong one, and forgets one in some minutes.
const triedFor = time.Hour

// unlocked stands for no password at all. Most keys have none; of one that has, this
// is learnt once, by whatever process.
type unlocked struct {
	key  string // as --key names it
	file string // is there since it was refused; "" remembers in this process alone

	mu    sync.Mutex
	since time.Time
}

var _ signer.Secret = (*unlocked)(nil)

func (o Options) unlocked(c *config.Config) signer.Secret {
	u := &unlocked{key: c.Key}
	if o.State != "" {
		sum := sha256.Sum256([]byte(c.TPMDevice + "\x00" + c.Key))
		u.file = filepath.Join(o.State, "refused", "empty-"+hex.EncodeToString(sum[:8]))
	}
	return u
}

// Secret returns no password, or says that the key wants one.
func (u *unlocked) Secret(context.Context) ([]byte, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if fi, err := os.Stat(u.file); u.file != "" && err == nil {
		u.since = fi.ModTime()
	}
	if time.Since(u.since) < triedFor {
		return nil, fmt.Errorf("%s wants one: say where it is, with --pin-source; it is not tried without, for a TPM locks itself", u.key)
	}
	return []byte{}, nil
}

// Refused remembers that the key has a password.
func (u *unlocked) Refused() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.since = time.Now()
	if u.file == "" {
		return
	}
	_ = os.Remove(u.file)
	// Where it cannot be written this process remembers.
	if err := os.MkdirAll(filepath.Dir(u.file), 0o700); err == nil {
		_ = os.WriteFile(u.file, nil, 0o600)
	}
}
