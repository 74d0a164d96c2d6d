package daemon

import (
	"context"
	"crypto/x509"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/enroll"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/keyhome"
	"github.com/execproxy/execproxy/proxy"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
	"github.com/execproxy/execproxy/transport"
)

// A front is what stands between the listeners and the API server: who we are,
// the way there, and the handler. A changed configuration puts another in its
// place, while the listeners and the session stay.
type front struct {
	d      *Daemon
	config *config.Config

	id       *identity
	upstream *transport.Transport
	proxy    *proxy.Proxy
	renewer  *enroll.Renewer // nil where nothing is renewed
	rotating sync.Mutex
	roots    *x509.CertPool // the last good ones; guarded by rotating once it runs

	unix, loopback               http.Handler
	unixStreams, loopbackStreams *proxy.Streams
	left                         func() // leave

	work     context.Context // ends with the front, or the proxy
	cancel   context.CancelFunc
	closers  []func()
	users    atomic.Int64  // requests that are being served
	replaced chan struct{} // closed when another front has taken over
	last     chan struct{} // closed when it has, and no request is left
	once     sync.Once
}

// open makes a front and connects it; the one of a daemon without a proxy has
// nothing but an identity. Nothing runs in it yet.
func (d *Daemon) open(ctx context.Context, c *config.Config, homes keyhome.Options) (*front, error) {
	f := &front{d: d, config: c, replaced: make(chan struct{}), last: make(chan struct{})}
	f.left = f.leave
	f.work, f.cancel = context.WithCancel(d.work)
	var err error
	var given *clientauthentication.Status
	if d.front.Load() == nil { // a reload finds out by itself
		given = d.opt.Credential
	}
	if f.id, err = newIdentity(ctx, c, homes, given, d.log); err != nil {
		f.close()
		return nil, err
	}
	if d.opt.Life == lifeDirect {
		return f, nil // there is no way from here
	}
	if err := f.connect(ctx); err != nil {
		f.close()
		return nil, err
	}
	f.unix, f.loopback = f.proxy.Unix(), f.proxy.Loopback()
	f.unixStreams, f.loopbackStreams = f.proxy.UnixStreams(), f.proxy.LoopbackStreams()
	return f, nil
}

// begin has it follow its files, its credentials and its certificate's end.
func (f *front) begin() error {
	if err := f.renew(); err != nil {
		return err
	}
	if f.config.CertificateAuthority != "" {
		f.d.Go(f.watchAuthority)
	}
	f.d.Go(func() { f.id.watch(f.work, f.rotate) })
	return nil
}

// endWatches ends what has no end of its own.
func (f *front) endWatches() {
	if f.proxy != nil {
		f.proxy.EndWatches()
	}
}

// cut ends whatever is being served.
func (f *front) cut() {
	if f.proxy != nil {
		f.proxy.Close()
	}
}

// close ends what it holds; whoever is served is cut.
func (f *front) close() {
	f.cancel()
	f.cut()
	for _, c := range slices.Backward(f.closers) {
		c()
	}
	if f.upstream != nil {
		_ = f.upstream.Close()
	}
	if f.id != nil {
		f.id.close()
	}
}

// enter returns the front of now, which stays open until leave.
func (d *Daemon) enter() *front {
	for {
		f := d.front.Load()
		f.users.Add(1)
		if d.front.Load() == f {
			return f
		}
		f.leave() // replaced in this moment: it may be closing
	}
}

func (f *front) leave() {
	if f.users.Add(-1) == 0 {
		select {
		case <-f.replaced:
			f.once.Do(func() { close(f.last) })
		default:
		}
	}
}

// settle is longer than a request takes from a listener into a front: one that came in just
// before the change is served by the former front, and a watch is not turned away there.
const settle = 100 * time.Millisecond

// replace puts next in the place of the front. What the old one serves goes on
// under its identity until it ends by itself, but watches, which have no end of
// their own and begin anew under the next.
func (d *Daemon) replace(next *front) {
	d.mu.Lock()
	old := d.front.Swap(next)
	d.former = append(d.former, old)
	closing := d.closing
	d.mu.Unlock()
	old.cancel()
	old.users.Add(1)
	close(old.replaced)
	old.leave()
	if closing { // it may have ended those of the one before
		next.endWatches()
	}
	d.Go(func() {
		settled := time.NewTimer(settle)
		defer settled.Stop()
		for {
			select {
			case <-settled.C:
				old.endWatches()
				continue
			case <-old.last:
			case <-d.work.Done():
			}
			break
		}
		old.close()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.former = slices.DeleteFunc(d.former, func(f *front) bool { return f == old })
		last := old.figures()
		last.proxy.InFlight, last.proxy.OpenUpgrades = 0, 0
		d.past.add(last)
	})
}

// lookAtKey takes over what is new in the key's home.
func (f *front) lookAtKey() {
	if f.id.current() != nil && f.config.Key != "" {
		f.id.reload(f.work, f.rotate)
	}
}
