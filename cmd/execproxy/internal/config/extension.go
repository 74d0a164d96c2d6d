package config

import (
	"encoding/base64"
	"slices"
	"strings"
	"time"
)

// Extension is the configuration in the words of the kubeconfig's exec
// extension; Load reads it back to the same.
func (c *Config) Extension() map[string]any {
	up := map[string]any{}
	doc := map[string]any{"upstream": up}
	text := func(m map[string]any, name, v string) {
		if v != "" {
			m[name] = v
		}
	}
	toggle := func(m map[string]any, name string, v bool) {
		if v {
			m[name] = v
		}
	}
	span := func(name string, v, standard time.Duration) {
		if v != 0 && v != standard {
			doc[name] = v.String()
		}
	}
	text(up, "server", c.Server)
	text(up, "certificate-authority", c.CertificateAuthority)
	if len(c.CertificateAuthorityData) > 0 {
		up["certificate-authority-data"] = c.CertificateAuthorityData
	}
	text(up, "tls-server-name", c.TLSServerName)
	text(up, "proxy-url", c.ProxyURL)
	toggle(up, "insecure-skip-tls-verify", c.InsecureSkipTLSVerify)
	toggle(up, "disable-compression", c.DisableCompression)

	text(doc, "auth", c.Auth)
	text(doc, "key", c.Key)
	text(doc, "cert", c.Cert)
	text(doc, "pinSource", c.PINSource)
	text(doc, "pkcs11Module", c.PKCS11Module)
	text(doc, "tpmDevice", c.TPMDevice)
	if c.Renew != c.standardRenew() {
		text(doc, "renew", c.Renew)
	}
	span("renewBefore", c.RenewBefore, 0)
	text(doc, "signerName", c.SignerName)
	if len(c.Headers) > 0 {
		doc["headers"] = c.Headers
	}
	text(doc, "awsRegion", c.AWSRegion)
	text(doc, "awsService", c.AWSService)
	text(doc, "awsProfile", c.AWSProfile)
	text(doc, "awsRoleArn", c.AWSRoleARN)
	text(doc, "awsExternalId", c.AWSExternalID)
	toggle(doc, "unsignedPayload", c.UnsignedPayload)
	toggle(doc, "signTarget", c.SignTarget)
	text(doc, "eksCluster", c.EKSCluster)
	text(doc, "execCommand", c.ExecCommand)
	if len(c.ExecArgs) > 0 {
		doc["execArgs"] = c.ExecArgs
	}
	if len(c.ExecEnv) > 0 {
		doc["execEnv"] = c.ExecEnv
	}
	if c.ExecAPIVersion != DefaultExecAPIVersion {
		text(doc, "execApiVersion", c.ExecAPIVersion)
	}
	if c.ExecInteractiveMode != InteractiveIfAvailable {
		text(doc, "execInteractiveMode", c.ExecInteractiveMode)
	}
	toggle(doc, "execProvideClusterInfo", c.ExecProvideClusterInfo)
	if len(c.Listen) > 0 {
		doc["listen"] = c.Listen
	}
	if c.ForeignAuthorization != Reject {
		text(doc, "foreignAuthorization", c.ForeignAuthorization)
	}
	span("idleTimeout", c.IdleTimeout, c.standardIdle())
	span("drainTimeout", c.DrainTimeout, DefaultDrainTimeout)
	text(doc, "metricsAddress", c.MetricsAddress)
	text(doc, "logLevel", c.LogLevel)
	text(doc, "logFile", c.LogFile)
	text(doc, "logFormat", c.LogFormat)
	return doc
}

// Arguments is the configuration in flags of the plugin, but for those of some groups;
// Load reads them back to the same. They hold no space that a value does not have: there
// are clients that join and split them.
func (c *Config) Arguments(but ...Group) []string {
	doc := c.Extension()
	up, _ := doc["upstream"].(map[string]any)
	var args []string
	for _, f := range Fields {
		v, ok := doc[f.JSON()]
		if f.upstream {
			v, ok = up[f.Flag]
		}
		if !ok || slices.Contains(but, f.Group) {
			continue
		}
		flag := "--" + f.Flag
		switch v := v.(type) {
		case bool: // a false one is not in an extension
			args = append(args, flag)
		case []byte:
			args = append(args, flag+"="+base64.StdEncoding.EncodeToString(v))
		case []string:
			for _, s := range v {
				args = append(args, flag+"="+s)
			}
		case string:
			args = append(args, flag+"="+v)
		}
	}
	return args
}

// FromArguments is what [Config.Arguments] made of an extension. Arguments that
// somebody wrote in other ways, or that name no cluster, are not ok.
func FromArguments(args []string) (doc map[string]any, ok bool) {
	up := map[string]any{}
	doc = map[string]any{"upstream": up}
	for _, arg := range args {
		flag, value, said := strings.Cut(arg, "=")
		i := slices.IndexFunc(Fields, func(f *Field) bool { return "--"+f.Flag == flag })
		if i < 0 || said == Fields[i].Switch() {
			return nil, false
		}
		f, to, name := Fields[i], doc, Fields[i].JSON()
		if f.upstream {
			to, name = up, f.Flag
		}
		switch {
		case f.Switch():
			to[name] = true
		case f.List:
			l, _ := to[name].([]string)
			to[name] = append(l, value)
		default:
			to[name] = value
		}
	}
	server, _ := up["server"].(string)
	return doc, server != ""
}
