package cli

import (
	"github.com/spf13/pflag"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/config"
	"github.com/execproxy/execproxy/cmd/execproxy/internal/daemon"
)

// commands is the one table. Its order is that of the usage text.
func commands() []*command {
	return []*command{
		{
			name: "exec", short: "exec credential plugin: what a kubeconfig calls",
			long: `Reads KUBERNETES_EXEC_INFO, starts the proxy of that cluster and identity or
finds it running, and prints one ExecCredential. A client that names a lock file
(KEP-2718) gets the address of a Unix socket, and the proxy ends with the lock.
Any other client gets the key pair of this user's loopback listener, which the
kubeconfig that ` + "`execproxy kubeconfig`" + ` prints points at; that proxy ends after
the idle timeout. A bare ` + "`execproxy`" + ` does the same when KUBERNETES_EXEC_INFO is set.`,
			groups: []config.Group{config.GroupIdentity, config.GroupKey, config.GroupRenew, config.GroupSigner, config.GroupCluster, config.GroupListen, config.GroupLock, config.GroupIdle, config.GroupLife, config.GroupExec, config.GroupPolicy, config.GroupLog, config.GroupFile},
			flags:  func(s *pflag.FlagSet, o *options) { s.BoolVar(&o.direct, "direct", false, directUsage) },
			run:    runExec,
		},
		{
			name: "serve", short: "the proxy in the foreground, until SIGTERM: sidecar, systemd, container",
			long: `Serves until SIGTERM or SIGINT, then gives requests --drain-timeout to end; a
second signal ends at once. SIGHUP reads the configuration anew. Under systemd it
takes over passed sockets, says when it is ready, and answers the watchdog. Without --listen it serves a Unix socket in the
runtime directory. The cluster and the identity may come from flags or from a
kubeconfig's context.`,
			groups: []config.Group{config.GroupIdentity, config.GroupKey, config.GroupRenew, config.GroupSigner, config.GroupCluster, config.GroupListen, config.GroupServe, config.GroupLock, config.GroupLife, config.GroupPolicy, config.GroupLog, config.GroupFile},
			flags:  kubeconfigFlags, run: runServe,
		},
		{
			name: "run", args: "-- CMD ARG…", short: "run any client through a private proxy; its exit code is ours",
			long: `Starts a proxy of its own on a random loopback port, writes a kubeconfig for it
into a private directory, sets KUBECONFIG, runs CMD, and removes everything when
CMD ends. The cluster and the identity may come from flags or from a
kubeconfig's context.`,
			groups: []config.Group{config.GroupIdentity, config.GroupKey, config.GroupRenew, config.GroupSigner, config.GroupCluster, config.GroupPolicy, config.GroupLog, config.GroupFile},
			flags:  kubeconfigFlags, run: runRun,
		},
		{
			name: "kubeconfig", short: "print a kubeconfig that goes through execproxy",
			long: `Reads a context of your kubeconfig and prints one for the same cluster whose
requests go through execproxy. It writes to standard output only and changes no
file. The identity comes from flags, or from the context's own client
certificate and key files or exec plugin.`,
			groups: []config.Group{config.GroupIdentity, config.GroupKey, config.GroupRenew, config.GroupSigner, config.GroupCluster, config.GroupListen, config.GroupIdle, config.GroupLife, config.GroupPolicy, config.GroupLog, config.GroupFile},
			flags: func(s *pflag.FlagSet, o *options) {
				kubeconfigFlags(s, o)
				s.StringVar(&o.provider, "cluster-profile-provider", "", "print instead, under this name, the provider file of ClusterProfiles (KEP-5339) for a controller whose plugin has these flags")
				s.BoolVar(&o.direct, "direct", false, directUsage)
				s.StringVar(&o.executable, "command", "", "what the kubeconfig calls; without it execproxy, as found in PATH or where this one lies")
				s.BoolVar(&o.clusterInfo, "provide-cluster-info", true, "the client tells the plugin of its cluster (default true); =false puts all into the plugin's arguments, for clients that do not (JavaScript, Java, old Python)")
			},
			run: runKubeconfig,
		},
		{
			name: "status", short: "this user's running proxies: cluster, identity, clients, certificate expiry",
			long:  "Asks every running proxy of this user.",
			flags: outputFlag, run: runStatus,
		},
		{
			name: "reload", args: "ID… | SOCKET… | --all", short: "have running proxies read their configuration anew",
			long: `As SIGHUP does, and says what is wrong with it: a proxy takes over all of a new
configuration or keeps the old one. Listeners, the log's place and the API server
need a restart. A changed file of --config is taken over by itself. A proxy that a
plugin started has no configuration to read: --all passes over it. SOCKET is the
path of the Unix socket that one serves.`,
			flags: func(s *pflag.FlagSet, o *options) {
				s.BoolVar(&o.all, "all", false, "every running proxy of this user")
			},
			run: runReload,
		},
		{
			name: "stop", args: "ID… | SOCKET… | --all", short: "end running proxies",
			long: "Ends this user's proxies as SIGTERM does and waits until they are gone. SOCKET\nis the path of the Unix socket that one serves.",
			flags: func(s *pflag.FlagSet, o *options) {
				s.BoolVar(&o.all, "all", false, "end every running proxy of this user")
			},
			run: runStop,
		},
		keyCommand(),
		imageCredentialsCommand(),
		{
			name: "demo", short: "the whole exchange on this machine, with an embedded API server that verifies",
			long: `Needs nothing but this binary: starts an API server that verifies client
certificates and SigV4, takes a lock, executes this binary as plugin, talks over
its socket, lets go, and watches the proxy end. Each step is printed with its
time.`,
			run: runDemo,
		},
		{
			name: "version", short: "print the version",
			flags: outputFlag, run: runVersion,
		},
		{name: daemon.Command, hidden: true, run: runDaemon},
		{name: imageDaemon, hidden: true, run: runImageDaemon},
		{name: daemon.ModuleCommand, hidden: true, run: runModule},
		{name: "docs", hidden: true, args: "man|flags", run: runDocs},
	}
}

func kubeconfigFlags(s *pflag.FlagSet, o *options) {
	s.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig to read; without it KUBECONFIG, then ~/.kube/config")
	s.StringVar(&o.context, "context", "", "its context; without it the current one")
}

func outputFlag(s *pflag.FlagSet, o *options) {
	s.StringVarP(&o.output, "output", "o", "", "json: machine-readable")
}
