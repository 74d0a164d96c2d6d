package clientgo

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"

	"github.com/execproxy/execproxy/proxy/client"
)

// The metrics of KEP-2718, for those who register them.
const (
	// CallsName is a counter with the labels code and call_status, of which
	// [Metrics.ExecPluginWithProxyCall] gets the values.
	CallsName = "rest_client_exec_plugin_with_proxy_call_total"
	CallsHelp = "Number of executions of an exec plugin that answers with a proxy, by exit code and by the kind of event: " +
		"no_error, plugin_execution_error, plugin_not_found_error or client_internal_error."

	// ErrorsName is a counter without labels, of [Metrics.ExecProxyError].
	ErrorsName = "client_exec_proxy_errors"
	ErrorsHelp = "Number of requests and streams that got no answer from the proxy of an exec plugin."
)

// Metrics counts what a [Resolver] sees. Its methods are called from several goroutines.
type Metrics interface {
	// ExecPluginWithProxyCall counts an execution of a plugin. code is its exit code: 0
	// for one that has answered, whether or not it runs on, 1 where there is none or the
	// answer could not be used. status is one of client-go's values for
	// rest_client_exec_plugin_call_total.
	ExecPluginWithProxyCall(code int, status string)

	// ExecProxyError counts a request or stream that got no answer from the proxy. What
	// the proxy or the API server answers, errors included, is none, nor what its caller
	// gave up.
	ExecProxyError()
}

type noMetrics struct{}

func (noMetrics) ExecPluginWithProxyCall(int, string) {}
func (noMetrics) ExecProxyError()                     {}

// Values of the label call_status, as client-go has them.
const (
	statusNoError   = "no_error"
	statusExecution = "plugin_execution_error"
	statusNotFound  = "plugin_not_found_error"
	statusInternal  = "client_internal_error"
)

// executed counts one execution by its outcome.
func executed(m Metrics, err error) {
	var exit *exec.ExitError
	var missing *exec.Error
	var failed *client.PluginError
	var call *fs.PathError // fork and exec
	var other *os.SyscallError
	switch {
	case err == nil:
		m.ExecPluginWithProxyCall(0, statusNoError)
	case errors.As(err, &exit):
		m.ExecPluginWithProxyCall(exit.ExitCode(), statusExecution)
	case errors.As(err, &missing), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		m.ExecPluginWithProxyCall(1, statusNotFound)
	case errors.As(err, &call), errors.As(err, &other), !errors.As(err, &failed):
		m.ExecPluginWithProxyCall(1, statusInternal)
	default:
		m.ExecPluginWithProxyCall(1, statusExecution)
	}
}
