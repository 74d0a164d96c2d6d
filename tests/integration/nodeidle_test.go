//go:build linux

package integration

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"
)

// silence is for how long nobody says anything on a stream. It is more than
// the time after which a proxy without a client ends (5m).
const silence = 6 * time.Minute

// TestIdleStreams: nothing ends a stream on which nothing is said. Its streams
// are opened before the tests that run beside each other begin, which is why it
// makes the whole no longer than it has to.
func TestIdleStreams(t *testing.T) {
	ctx, broken := context.WithCancelCause(t.Context())
	defer broken(nil)
	var ends []func(*testing.T)
	var pod *route
	for _, way := range []string{"mtls", "sigv4"} {
		for _, protocol := range []string{"websocket", "spdy"} {
			r := newRoute(t, way, protocol)
			if pod == nil {
				pod = r
				r.pod(t)
			}
			r.ns = pod.ns
			ends = append(ends, idleExec(t, r, broken), idleForward(t, r), idleLogs(t, r))
			if protocol == "websocket" {
				ends = append(ends, idleUpgrades(t, r)...)
			}
		}
	}
	over := time.After(silence)
	t.Parallel()
	select {
	case <-over:
	case <-ctx.Done():
		t.Error(context.Cause(ctx))
	}
	pod.attach(t, "after the silence\n")
	for _, end := range ends {
		end(t)
	}
}

// idleExec opens an exec that echoes.
func idleExec(t *testing.T, r *route, broken context.CancelCauseFunc) func(*testing.T) {
	t.Helper()
	b := r.start(r.args("exec", "-i", "p", "--", "cat")...)
	say := func(line string) {
		t.Helper()
		_, err := b.stdin.Write([]byte(line))
		must(t, err)
		b.stdout.await(t, line)
	}
	say("before\n")
	go func() {
		<-b.done
		broken(&endedError{r, b})
	}()
	return func(t *testing.T) {
		say("after\n")
		must(t, b.stdin.Close())
		if code := b.wait(); code != 0 {
			t.Errorf("%s/%s: exec ends with code %d: %s", r.way, r.protocol, code, b.stderr)
		}
	}
}

type endedError struct {
	r *route
	b *background
}

func (e *endedError) Error() string {
	return e.r.way + "/" + e.r.protocol + ": exec ended while it was silent: " + e.b.stderr.String()
}

// idleForward opens a port-forward and a connection through it.
func idleForward(t *testing.T, r *route) func(*testing.T) {
	t.Helper()
	b, address := r.forward(t, echoPort)
	conn, err := net.Dial("tcp", address)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	must(t, echoesNoise(conn, "before", 1000))
	return func(t *testing.T) {
		if err := echoesNoise(conn, "after "+r.protocol, 1<<20); err != nil {
			t.Errorf("%s/%s: through the silent port-forward %v\n%s", r.way, r.protocol, err, b.stderr)
		}
		b.signal(syscall.SIGINT)
		b.wait()
	}
}

// idleLogs follows the pod's log.
func idleLogs(t *testing.T, r *route) func(*testing.T) {
	t.Helper()
	b := r.start(r.args("logs", "-f", "p")...)
	r.attach(t, "before the silence "+r.way+r.protocol+"\n")
	b.stdout.await(t, "before the silence "+r.way+r.protocol+"\n")
	return func(t *testing.T) {
		b.stdout.await(t, "after the silence\n")
		b.signal(syscall.SIGINT)
		b.wait()
	}
}

// idleUpgrades opens streams over the Unix socket on which there is really
// nothing: kubectl's pings and the API server's keep theirs from that.
func idleUpgrades(t *testing.T, r *route) (ends []func(*testing.T)) {
	t.Helper()
	u := newUpstream(t)
	config := sigv4Config()
	if r.way == "mtls" {
		// The certificate that is written anew makes the streams before go on over one that is retired.
		cert, key := r.user("jane", "dev")
		config = mtls(cert, key)
	}
	d := r.open(plugin{server: u.url, ca: suite.cluster.CA.PEM, config: config, lock: r.lock()})
	for method, protocol := range map[string]string{"GET": "websocket", "POST": "SPDY/3.1"} {
		conn, reader := d.upgrade(t, u.url, method, "/api/v1/namespaces/x/pods/p/exec?command=cat", protocol)
		echoes(t, conn, reader, "before")
		must(t, conn.SetDeadline(time.Time{}))
		ends = append(ends, func(t *testing.T) {
			must(t, conn.SetDeadline(time.Now().Add(patience)))
			echoes(t, conn, reader, "after")
			must(t, conn.Close())
		})
	}
	return ends
}
