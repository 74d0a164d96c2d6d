//go:build linux

package integration

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	transportspdy "k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// TestUnixSocketStreams: client-go's own exec and port-forward over the Unix
// socket, which kubectl cannot name. Its SPDY takes any transport; its WebSocket
// dials by itself, and so needs the loopback listener.
func TestUnixSocketStreams(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"mtls", "sigv4"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := newRoute(t, way, "spdy")
			r.pod(t)
			server, config := suite.cluster.API.URL, sigv4Config()
			if way == "mtls" {
				cert, key := r.user("jane", "dev")
				config = mtls(cert, key)
			} else {
				server = r.front.URL
			}
			d := r.open(plugin{server: server, ca: suite.cluster.CA.PEM, config: config, lock: r.lock()})
			transport := d.client(t, server).Transport.(*http.Transport).Clone()
			transport.ForceAttemptHTTP2, transport.TLSClientConfig = false, d.tls(t, server, "http/1.1")
			upgrader, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{UpgradeTransport: transport, PingPeriod: 5 * time.Second})
			must(t, err)
			compat := transportspdy.NewUpgraderForStreaming(upgrader)
			pod, err := url.Parse(server + "/api/v1/namespaces/" + r.ns + "/pods/p/")
			must(t, err)

			exec := pod.JoinPath("exec")
			exec.RawQuery = url.Values{"stdin": {"true"}, "stdout": {"true"}, "stderr": {"true"}, "command": {"sh", "-c", "cat; echo complaint >&2; exit 7"}}.Encode()
			executor, err := remotecommand.NewSPDYExecutorForTransports(upgrader, compat, http.MethodPost, exec)
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			there, back := sha256.New(), sha256.New()
			var stderr strings.Builder
			err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{
				Stdin: io.TeeReader(io.LimitReader(noise(r.ns), 8<<20), there), Stdout: back, Stderr: &stderr,
			})
			if err == nil || !strings.Contains(err.Error(), "exit code 7") || stderr.String() != "complaint\n" {
				t.Errorf("exec ends with %v, stderr %q; want exit code 7 and the complaint", err, stderr.String())
			}
			if !bytes.Equal(there.Sum(nil), back.Sum(nil)) {
				t.Error("8 MiB came back changed")
			}

			dialer := transportspdy.NewDialerForStreaming(compat, &http.Client{Transport: upgrader}, http.MethodPost, pod.JoinPath("portforward"))
			stop, ready := make(chan struct{}), make(chan struct{})
			forwarder, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{"0:" + echoPort}, stop, ready, io.Discard, io.Discard)
			must(t, err)
			done := make(chan error, 1)
			go func() { done <- forwarder.ForwardPorts() }()
			select {
			case <-ready:
			case err := <-done:
				t.Fatal(err)
			}
			ports, err := forwarder.GetPorts()
			must(t, err)
			if err := echoed(fmt.Sprintf("127.0.0.1:%d", ports[0].Local), r.ns, 8<<20); err != nil {
				t.Error(err)
			}
			close(stop)
			if err := <-done; err != nil {
				t.Errorf("port-forward ends with %v", err)
			}
			r.check(t)
		})
	}
}
