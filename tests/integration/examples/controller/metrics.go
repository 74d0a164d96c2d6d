package main

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/execproxy/execproxy/proxy/client/clientgo"
)

// counters are the metrics of KEP-2718 in a Prometheus registry.
type counters struct {
	calls  *prometheus.CounterVec
	errors prometheus.Counter
}

func register(r prometheus.Registerer) *counters {
	c := &counters{
		calls:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: clientgo.CallsName, Help: clientgo.CallsHelp}, []string{"code", "call_status"}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{Name: clientgo.ErrorsName, Help: clientgo.ErrorsHelp}),
	}
	r.MustRegister(c.calls, c.errors)
	return c
}

// ExecPluginWithProxyCall implements clientgo.Metrics.
func (c *counters) ExecPluginWithProxyCall(code int, status string) {
	c.calls.WithLabelValues(strconv.Itoa(code), status).Inc()
}

// ExecProxyError implements clientgo.Metrics.
func (c *counters) ExecProxyError() { c.errors.Inc() }
