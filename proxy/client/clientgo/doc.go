// Package clientgo is the exec-proxy protocol (KEP-2718) for programs that have a
// [rest.Config]: controllers, operators, command-line tools on client-go. client-go itself
// does not know the protocol.
//
//	r := clientgo.New(clientgo.Options{})
//	defer r.Close()
//	res, err := r.Resolve(ctx, config) // config.ExecProvider names the plugin
//	…
//	clientset, err := kubernetes.NewForConfigAndClient(res.Config, res.HTTPClient)
//
// A [Resolved] has two configurations, because client-go has two ways to a server:
//
//   - Config, and HTTPClient made of it, for whatever sends requests: clientsets, dynamic,
//     metadata and discovery clients, informers, controller-runtime. Its Transport leads
//     over the Unix socket that the plugin named. It is one and the same for all
//     configurations with the same plugin and cluster, and client-go's own cache of
//     transports, in which every Dial function is a new entry, never sees it. So constructors
//     that take a rest.Config alone may be used as well.
//   - [Resolved.StreamConfig], for exec, attach and port-forward: remotecommand's and
//     portforward's SPDY and WebSocket dialers make TLS configuration, proxy and address
//     of a rest.Config and dial by themselves, past any Transport or Dial.
//
// Of all that such a dialer takes from a rest.Config only Proxy reaches WebSocket as well as
// SPDY and leaves URLs as they are. So StreamConfig names a proxy, this process's own: a
// listener on a random loopback port which takes CONNECT for this one cluster. It wants
// a password that only the configuration has, and inside TLS a client pair which it made
// for that. From there the stream goes over the same Unix socket, as HTTP/1.1. CA, pair and
// password last as long as the Resolver: the plugin's own change with each start of the
// proxy, and a rest.Config cannot follow. The listener is opened by the first StreamConfig.
//
// The other ways were tried on paper: the daemon's own loopback listener would have to be
// asked for without a lock, hence of a second proxy, and other plugins have none; a
// Host on loopback changes the URLs that callers build; Dial is ignored by both executors.
//
// # What becomes of a rest.Config
//
// The plugin gets what client-go would give it: arguments, environment, the cluster if
// provideClusterInfo is set, proxy-url where Proxy returns one. Plugin policies and
// allowlists hold. It is never interactive and has no stdin: interactiveMode Always is
// refused. Impersonate, UserAgent, WrapTransport, QPS, Burst, RateLimiter, Timeout,
// WarningHandler and all of ContentConfig stay as they are. TLS settings move to the plugin,
// which needs them to reach the cluster.
//
// Refused, with an error that says why: another credential beside ExecProvider, with which
// client-go would leave the plugin out; Transport and Dial, as the connections to the API
// server are the proxy's; Proxy where the plugin cannot be told of it; a Host that is not
// https.
//
// # When the proxy ends
//
// Requests find it gone, the plugin is executed again, once for all who wait, with a growing
// pause after failures, and they go on; see [client.Client]. Watches that were open end, and
// informers list and watch anew. The proxy ends with [Resolver.Close], with the
// [Resolved.Close] of the last user of its cluster, or with this process.
package clientgo
