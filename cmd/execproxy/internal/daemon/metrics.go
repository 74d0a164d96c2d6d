package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// writeMetrics writes this proxy's figures in Prometheus' text format.
func (d *Daemon) writeMetrics(w io.Writer) {
	f := d.front.Load()
	all := d.figures()
	px, up := all.proxy, all.upstream
	count := func(name string, v uint64) { metrics.WriteCounterUint64(w, "execproxy_"+name, v) }
	gauge := func(name string, v float64) { metrics.WriteGaugeFloat64(w, "execproxy_"+name, v) }

	count("requests_total", px.Requests)
	gauge("requests_in_flight", float64(px.InFlight))
	count("requests_retried_total", px.Retries+up.Retries)
	count("responses_truncated_total", px.Truncated)
	count("upgrades_total", px.Upgrades)
	for _, reason := range slices.Sorted(maps.Keys(px.Errors)) {
		count(fmt.Sprintf("errors_total{reason=%q}", reason), px.Errors[reason])
	}
	d.floods.write(w, "execproxy_http2_floods_total")
	d.upstreamFloods.write(w, "execproxy_upstream_http2_floods_total")
	gauge("client_connections", float64(d.life.clients()))
	count("signatures_total", all.signatures+up.Signatures)
	count("upstream_dials_total", up.Dials)
	count("upstream_dial_errors_total", up.DialErrors)
	count(`upstream_handshakes_total{kind="full"}`, up.FullHandshakes)
	count(`upstream_handshakes_total{kind="resumed"}`, up.ResumedHandshakes)
	count("upstream_goaways_total", up.GoAways)
	count("upstream_dead_peers_total", up.DeadPeers)
	gauge("key_generation", float64(up.Generation))
	f.id.writeMetrics(w)
	d.obtentions.write(w)
	if r := f.renewalStatus(); r != nil {
		count("renewals_total", r.Renewed)
		pending := 0.0
		if r.Request != "" {
			pending = 1
		}
		gauge("renewal_pending", pending)
	}
	if t := f.id.notAfter(); t != nil {
		gauge("certificate_not_after_seconds", float64(t.Unix()))
	}
	metrics.WriteProcessMetrics(w)
}

// healthTimeout is longer than any listener of a machine that is not stuck takes.
const healthTimeout = 5 * time.Second

// listenMetrics serves Prometheus on an address of its own: every path of the
// API listeners belongs to the API server.
func (d *Daemon) listenMetrics(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return fmt.Errorf("metrics-address %s: %w; name a free one", addr, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		d.writeMetrics(w)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
		defer cancel()
		if err := d.Healthy(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	l := &listener{addr: ln.Addr().String(), server: d.ownServer(mux)}
	d.add(l)
	d.serve(l, ln)
	d.mu.Lock()
	d.metrics = "http://" + l.addr + "/metrics"
	d.mu.Unlock()
	d.log.Info("metrics", "address", "http://"+l.addr+"/metrics")
	return nil
}
