package config

import "time"

// Fields is the one table of what can be said, in the order of usage texts.
var Fields = []*Field{
	{Flag: "auth", Arg: "SCHEME", Group: GroupIdentity, Usage: "who the proxy is to the API server: mtls, sigv4, headers, exec or eks-token", set: text(func(c *Config) *string { return &c.Auth })},
	{Flag: "key", Arg: "KEY", Group: GroupKey, Path: true, Usage: "private key of mtls: a PEM file, pkcs11:… (RFC 7512), tpm:handle=0x81000100 or tpm:FILE (TSS2)", set: text(func(c *Config) *string { return &c.Key })},
	{Flag: "cert", Arg: "FILE", Group: GroupKey, Path: true, Usage: "its PEM certificate chain, leaf first; without it the chain is in the key's file or on its token", set: text(func(c *Config) *string { return &c.Cert })},
	{Flag: "pin-source", Arg: "SOURCE", Group: GroupKey, Usage: "PIN of the token, or password of the TPM's key: FILE, fd:N, credential:NAME (systemd), askpass:PROGRAM, or prompt", set: text(func(c *Config) *string { return &c.PINSource })},
	{Flag: "pkcs11-module", Arg: "FILE", Group: GroupKey, Path: true, Usage: "the token's PKCS#11 library, where the key's URI names none; without it p11-kit's", set: text(func(c *Config) *string { return &c.PKCS11Module })},
	{Flag: "tpm-device", Arg: "PATH", Group: GroupKey, Path: true, Usage: "device or Unix socket of the TPM (default /dev/tpmrm0)", set: text(func(c *Config) *string { return &c.TPMDevice })},
	{Flag: "renew", Arg: "HOW", Group: GroupRenew, Usage: "renew the certificate before it ends: same-key (default of keys in TPMs and tokens), new-key, or off (default of files)", set: text(func(c *Config) *string { return &c.Renew })},
	{Flag: "renew-before", Arg: "DURATION", Group: GroupRenew, Usage: "renew this long before the end; without it at two thirds of the certificate's life, and never in its first half", set: span(func(c *Config) *time.Duration { return &c.RenewBefore })},
	{Flag: "signer-name", Arg: "NAME", Group: GroupSigner, Usage: "signer of the cluster that issues the certificate; without it kubernetes.io/kube-apiserver-client, of nodes -kubelet", set: text(func(c *Config) *string { return &c.SignerName })},
	{Flag: "header", json: "headers", Arg: "NAME=VALUE", List: true, Group: GroupIdentity, Usage: "header of auth headers, or NAME=@FILE, re-read when it changes; repeatable", set: list(func(c *Config) *[]string { return &c.Headers })},
	{Flag: "aws-region", remote: true, Arg: "REGION", Group: GroupIdentity, Usage: "region to sign for; without it the AWS SDK's own", set: text(func(c *Config) *string { return &c.AWSRegion })},
	{Flag: "aws-service", remote: true, Arg: "NAME", Group: GroupIdentity, Usage: "service to sign for (default \"eks\")", set: text(func(c *Config) *string { return &c.AWSService })},
	{Flag: "aws-profile", Arg: "NAME", Group: GroupIdentity, Usage: "profile of the shared AWS configuration", set: text(func(c *Config) *string { return &c.AWSProfile })},
	{Flag: "aws-role-arn", remote: true, Arg: "ARN", Group: GroupIdentity, Usage: "role to assume", set: text(func(c *Config) *string { return &c.AWSRoleARN })},
	{Flag: "aws-external-id", remote: true, Arg: "ID", Group: GroupIdentity, Usage: "external id of that role", set: text(func(c *Config) *string { return &c.AWSExternalID })},
	{Flag: "unsigned-payload", Group: GroupIdentity, Usage: "send bodies over 3 MiB as UNSIGNED-PAYLOAD instead of refusing them", set: toggle(func(c *Config) *bool { return &c.UnsignedPayload })},
	{Flag: "sign-target", Group: GroupIdentity, Usage: "also sign the exact path and query, whose order plain SigV4 leaves open", set: toggle(func(c *Config) *bool { return &c.SignTarget })},
	{Flag: "eks-cluster", remote: true, Arg: "NAME", Group: GroupIdentity, Usage: "name of the EKS cluster that a token of eks-token is for", set: text(func(c *Config) *string { return &c.EKSCluster })},
	{Flag: "exec-command", Arg: "COMMAND", Group: GroupIdentity, Usage: "exec credential plugin behind the proxy, of auth exec", set: text(func(c *Config) *string { return &c.ExecCommand })},
	{Flag: "exec-arg", json: "execArgs", Arg: "ARG", List: true, Group: GroupIdentity, Usage: "argument of that plugin; repeatable", set: list(func(c *Config) *[]string { return &c.ExecArgs })},
	{Flag: "exec-env", Arg: "NAME=VALUE", List: true, Group: GroupIdentity, Usage: "environment variable of that plugin, besides those of the client; repeatable", set: list(func(c *Config) *[]string { return &c.ExecEnv })},
	{Flag: "exec-api-version", json: "execApiVersion", Arg: "VERSION", Group: GroupIdentity, Usage: "client.authentication.k8s.io/v1 (default) or …/v1beta1, which that plugin speaks", set: text(func(c *Config) *string { return &c.ExecAPIVersion })},
	{Flag: "exec-interactive-mode", Arg: "MODE", Group: GroupIdentity, Usage: "whether that plugin may use the terminal: Never, IfAvailable (default) or Always", set: text(func(c *Config) *string { return &c.ExecInteractiveMode })},
	{Flag: "exec-provide-cluster-info", Group: GroupIdentity, Usage: "tell that plugin which cluster it is for", set: toggle(func(c *Config) *bool { return &c.ExecProvideClusterInfo })},

	{Flag: "server", Arg: "URL", Group: GroupCluster, upstream: true, Usage: "the API server, https://HOST[:PORT][/BASE]", set: text(func(c *Config) *string { return &c.Server })},
	{Flag: "certificate-authority", Arg: "FILE", Group: GroupCluster, Path: true, upstream: true, Usage: "PEM certificates that vouch for it; without them the system's", set: setCAFile},
	{Flag: "certificate-authority-data", Arg: "BASE64", Group: GroupCluster, upstream: true, Usage: "the same, inline", set: setCAData},
	{Flag: "tls-server-name", Arg: "NAME", Group: GroupCluster, upstream: true, Usage: "name that its certificate must carry, where it is not the host", set: text(func(c *Config) *string { return &c.TLSServerName })},
	{Flag: "insecure-skip-tls-verify", Group: GroupCluster, upstream: true, Usage: "do not verify the API server's certificate; whoever answers gets the requests", set: toggle(func(c *Config) *bool { return &c.InsecureSkipTLSVerify })},
	{Flag: "proxy-url", Arg: "URL", Group: GroupCluster, upstream: true, Usage: "proxy on the way: http, https or socks5; without it HTTPS_PROXY and NO_PROXY", set: text(func(c *Config) *string { return &c.ProxyURL })},
	{Flag: "disable-compression", Group: GroupCluster, upstream: true, Usage: "ask the API server for no compressed answers, whatever the client takes", set: toggle(func(c *Config) *bool { return &c.DisableCompression })},

	{Flag: "listen", Arg: "ADDRESS", List: true, Group: GroupListen, Usage: "unix:///PATH or https://127.0.0.1:PORT; repeatable", set: list(func(c *Config) *[]string { return &c.Listen })},
	{Flag: "kubeconfig-out", Arg: "FILE", Group: GroupServe, Path: true, Usage: "write a kubeconfig (0600) that any client of this user can use as it is", set: text(func(c *Config) *string { return &c.KubeconfigOut })},

	{Flag: "lock-file", Arg: "FILE", Group: GroupLock, Path: true, Usage: "end when this file, locked by the parent with flock(2), comes free", set: text(func(c *Config) *string { return &c.LockFile })},
	{Flag: "foreground", Group: GroupExec, Usage: "serve in the plugin's own process instead of a daemon", set: toggle(func(c *Config) *bool { return &c.Foreground })},
	{Flag: "socket", Arg: "PATH", Group: GroupExec, Path: true, Usage: "answer for the proxy that already serves at this Unix socket", set: text(func(c *Config) *string { return &c.Socket })},
	{Flag: "extension-policy", Arg: "POLICY", noFile: true, Group: GroupExec, Usage: "what the cluster's exec extension may say: all (default), or cluster, nothing of this machine: for extensions that others write", set: setExtensionPolicy},
	{Flag: "provider", Arg: "NAME", noFile: true, Group: GroupExec, Usage: "count this plugin's calls under this name in metrics and status", set: setProvider},
	{Flag: "idle-timeout", Arg: "DURATION", Group: GroupIdle, Usage: "end a daemon without lock after this time without a client (default 5m)", set: span(func(c *Config) *time.Duration { return &c.IdleTimeout })},
	{Flag: "drain-timeout", Arg: "DURATION", Group: GroupLife, Usage: "time that requests get to end after SIGTERM (default 10s)", set: span(func(c *Config) *time.Duration { return &c.DrainTimeout })},
	{Flag: "foreign-authorization", Arg: "POLICY", Group: GroupPolicy, Usage: "requests with an Authorization of their own: reject (default), or passthrough without our identity", set: text(func(c *Config) *string { return &c.ForeignAuthorization })},

	{Flag: "config", Arg: "FILE", Group: GroupFile, noFile: true, Usage: "YAML, apiVersion execproxy.io/v1alpha1, kind ProxyConfiguration", set: text(func(c *Config) *string { return &c.File })},
	{Flag: "metrics-address", Arg: "HOST:PORT", Group: GroupLog, Usage: "serve Prometheus metrics here, at /metrics; without it nowhere", set: text(func(c *Config) *string { return &c.MetricsAddress })},
	{Flag: "log-level", Arg: "LEVEL", Group: GroupLog, Usage: "debug, info, warn or error (default info)", set: text(func(c *Config) *string { return &c.LogLevel })},
	{Flag: "log-file", Arg: "FILE", Group: GroupLog, Path: true, Usage: "where to log; without it stderr, or the state directory for a daemon", set: text(func(c *Config) *string { return &c.LogFile })},
	{Flag: "log-format", Arg: "FORMAT", Group: GroupLog, Usage: "text or json (default text)", set: text(func(c *Config) *string { return &c.LogFormat })},
}
