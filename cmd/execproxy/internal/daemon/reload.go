package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/keyhome"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/systemd"
	"github.com/execproxy/execproxy/signer/watch"
)

// ReloadStatus is what `execproxy status` tells of the last reload.
type ReloadStatus struct {
	At    time.Time `json:"at"`
	Error string    `json:"error,omitempty"` // why the old configuration stays
}

// reloadTimeout bounds one reload: the opening of a key and a connection.
const reloadTimeout = keyTimeout + 15*time.Second

// followConfiguration reloads when it is asked to, and when the configuration's file
// holds something else.
func (d *Daemon) followConfiguration() {
	if d.opt.Reload == nil {
		return
	}
	if d.opt.Hangup != nil {
		d.Go(func() {
			for {
				select {
				case <-d.work.Done():
					return
				case <-d.opt.Hangup:
					_ = d.Reload("hangup") // it has told everybody
				}
			}
		})
	}
	path := d.config.File
	if path == "" {
		return
	}
	d.Go(func() {
		known := false // what was read last has been looked at, and could be read
		begun := false
		err := watch.Run(d.work, watch.Options[[]byte]{
			Paths: []string{path},
			Equal: func(now, last []byte) bool { return known && bytes.Equal(now, last) },
			Load:  func() ([]byte, error) { return os.ReadFile(path) },
			// Also where it cannot be read, which status has to say, and when it can be again.
			Changed: func(_ []byte, err error) {
				known = err == nil
				// The start took its time: mostly nothing was written meanwhile.
				if !begun {
					begun = true
					if c, err := d.opt.Reload(); err == nil && len(differences(d.said.Load(), c)) == 0 {
						return
					}
				}
				_ = d.Reload("file changed")
			},
		})
		if err != nil {
			d.log.Error("the configuration is no longer watched", "file", path, "error", err)
		}
	})
}

// Reload reads the configuration anew and takes over all of it, or nothing and says
// why. No connection of a client is dropped.
func (d *Daemon) Reload(why string) error {
	d.mu.Lock()
	if d.closing {
		d.mu.Unlock()
		d.log.Info("not reloaded, the proxy is ending", "cause", why)
		return errEnding
	}
	select {
	case <-d.ready:
	default: // and READY=1 in the middle of a start would be a lie
		d.mu.Unlock()
		return errStarting
	}
	d.background.Add(1)
	d.mu.Unlock()
	defer d.background.Done()
	d.reloading.Lock()
	defer d.reloading.Unlock()

	d.tell("RELOADING=1", systemd.Monotonic(), "STATUS=reloading")
	ctx, cancel := context.WithTimeout(d.work, reloadTimeout)
	defer cancel()
	changed, err := d.reload(ctx)
	status := &ReloadStatus{At: time.Now().UTC().Truncate(time.Second)}
	switch {
	case err != nil:
		status.Error = oneLine(err.Error())
		d.log.Error("the changed configuration is not used, the old one stays", "cause", why, "error", err)
	default:
		d.log.Info("configuration reloaded", "cause", why, "changed", changed)
	}
	d.reloaded.Store(status)
	d.tell("READY=1", d.line())
	return err
}

// reload returns the fields that have another value than before.
func (d *Daemon) reload(ctx context.Context) ([]string, error) {
	f := d.front.Load()
	c, err := d.opt.Reload()
	if err != nil {
		return nil, err
	}
	old := d.said.Load()
	changed := differences(old, c)
	var fixed []string
	for _, name := range changed {
		if slices.Contains(needRestart, name) {
			fixed = append(fixed, name)
		}
	}
	if len(fixed) > 0 {
		return nil, fmt.Errorf("%s: cannot change while the proxy serves; restart it, or change it back", strings.Join(fixed, ", "))
	}
	if err := CheckFiles(c); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(changed, func(name string) bool { return !slices.Contains(atOnce, name) }) {
		homes := d.homes
		if old.PINSource != c.PINSource || old.Key != c.Key {
			homes.Kept = &keyhome.Kept{} // what unlocked the one before is no PIN of this one
		}
		next, err := d.open(ctx, c, homes)
		if err != nil {
			return nil, err
		}
		if err := next.begin(); err != nil {
			next.close()
			return nil, err
		}
		d.homes = homes
		d.Warn(next.id.warnings...)
		d.replace(next)
	} else {
		f.lookAtKey()
	}
	setLevel(d.level, c)
	d.said.Store(c)
	if d.work.Err() != nil {
		return nil, errors.New("the proxy is ending")
	}
	return changed, nil
}

// needRestart are fields that bear on what stays: listeners, sessions, the log.
var needRestart = []string{
	"server", "tlsServerName", "listen", "kubeconfigOut", "metricsAddress", "lockFile", "logFile", "logFormat",
}

// atOnce are fields that need nothing to be made anew.
var atOnce = []string{"drainTimeout", "logLevel", "idleTimeout", "socket", "foreground"}

// differences names the fields, as the configuration's file does, in which two
// configurations differ. An inline pair is called key.
func differences(a, b *config.Config) (names []string) {
	var compare func(x, y reflect.Value)
	compare = func(x, y reflect.Value) {
		for i := range x.NumField() {
			field := x.Type().Field(i)
			if field.Anonymous {
				compare(x.Field(i), y.Field(i))
				continue
			}
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			switch field.Name {
			case "File":
				continue
			case "KeyPEM", "CertPEM":
				name = "key"
			}
			u, v := x.Field(i), y.Field(i)
			if u.Kind() == reflect.Slice && u.Len() == 0 && v.Len() == 0 || reflect.DeepEqual(u.Interface(), v.Interface()) {
				continue
			}
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	compare(reflect.ValueOf(*a), reflect.ValueOf(*b))
	return names
}
