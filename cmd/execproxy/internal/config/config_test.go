package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func env(m map[string]string) func(string) (string, bool) {
	return func(k string) (string, bool) { v, ok := m[k]; return v, ok }
}

func flags(kv ...string) func(*Config) error {
	return func(c *Config) error {
		for i := 0; i < len(kv); i += 2 {
			for _, f := range Fields {
				if f.Flag == kv[i] {
					if err := f.SetAll(c, []string{kv[i+1]}, "/work"); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const head = "apiVersion: execproxy.io/v1alpha1\nkind: ProxyConfiguration\n"

// The same field is said in all four places; each stronger one is taken away in
// turn.
func TestPrecedence(t *testing.T) {
	ext := json.RawMessage(`{"upstream":{"server":"https://ext"},"auth":"sigv4","awsProfile":"ext"}`)
	file := writeFile(t, head+"awsProfile: file\n")
	s := Sources{
		Extension: ext, File: file,
		Environ: env(map[string]string{"EXECPROXY_AWS_PROFILE": "env"}),
		Flags:   flags("aws-profile", "flag"),
	}
	for _, want := range []string{"flag", "env", "file", "ext"} {
		c, err := Load(s)
		if err != nil {
			t.Fatal(err)
		}
		if c.AWSProfile != want {
			t.Errorf("got %q, want %q", c.AWSProfile, want)
		}
		switch want {
		case "flag":
			s.Flags = nil
		case "env":
			s.Environ = nil
		case "file":
			s.File = ""
		}
	}
}

func TestListsReplaceWeakerOnes(t *testing.T) {
	c, err := Load(Sources{
		Extension: json.RawMessage(`{"headers":["A=1","B=2"]}`),
		Environ:   env(map[string]string{"EXECPROXY_HEADER": "C=3\nD=4\n"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"C=3", "D=4"}; !reflect.DeepEqual(c.Headers, want) {
		t.Errorf("got %q, want %q", c.Headers, want)
	}
}

func TestBadSources(t *testing.T) {
	for _, tt := range []struct {
		name string
		s    Sources
		want []string
	}{
		{"unknown field of the extension", Sources{Extension: json.RawMessage(`{"awsProfil":"x"}`)}, []string{"exec extension", "awsProfil", "unknown field", "awsProfile"}},
		{"cluster said twice", Sources{Extension: json.RawMessage(`{"server":"https://a","upstream":{"server":"https://b"}}`)}, []string{"server", "upstream.server"}},
		{"unknown field of upstream", Sources{Extension: json.RawMessage(`{"upstream":{"serverName":"x"}}`)}, []string{"upstream.serverName", "unknown field", "tls-server-name"}},
		{"wrong type", Sources{Extension: json.RawMessage(`{"unsignedPayload":"yes"}`)}, []string{"unsignedPayload", "true or false"}},
		{"null", Sources{Extension: json.RawMessage(`{"key":null}`)}, []string{"key", "must be a string", "quotes"}},
		{"duration without a unit", Sources{File: writeFile(t, head+"drainTimeout: 30\n")}, []string{"config.yaml", "drainTimeout", "like 90s"}},
		{"extension is no object", Sources{Extension: json.RawMessage(`[1]`)}, []string{"exec extension", "not an object"}},
		{"relative path in the extension", Sources{Extension: json.RawMessage(`{"key":"key.pem"}`)}, []string{"key", "relative", "absolute"}},
		{"unknown field of the file", Sources{File: writeFile(t, head+"colour: red\n")}, []string{"config.yaml", "colour", "unknown field"}},
		{"field twice", Sources{File: writeFile(t, head+"auth: mtls\nauth: sigv4\n")}, []string{"twice"}},
		{"wrong kind", Sources{File: writeFile(t, "apiVersion: execproxy.io/v1alpha1\nkind: Config\n")}, []string{"kind", "ProxyConfiguration"}},
		{"wrong version", Sources{File: writeFile(t, "apiVersion: v2\nkind: ProxyConfiguration\n")}, []string{"apiVersion", "execproxy.io/v1alpha1"}},
		{"missing file", Sources{File: "/does/not/exist"}, []string{"/does/not/exist"}},
		{"bad duration", Sources{Environ: env(map[string]string{"EXECPROXY_IDLE_TIMEOUT": "soon"})}, []string{"EXECPROXY_IDLE_TIMEOUT", "duration"}},
		{"bad base64", Sources{Extension: json.RawMessage(`{"upstream":{"certificate-authority-data":"%"}}`)}, []string{"certificate-authority-data", "base64"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(tt.s)
			wantWords(t, err, tt.want)
		})
	}
}

func wantWords(t *testing.T, err error, words []string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
}

func TestComplete(t *testing.T) {
	mtls := Identity{Auth: AuthMTLS, Key: "/k", Cert: "/c"}
	on := func(i Identity) Config { return Config{Cluster: Cluster{Server: "https://prod:6443"}, Identity: i} }
	with := func(c Config, f func(*Config)) Config { f(&c); return c }
	for _, tt := range []struct {
		name string
		c    Config
		want []string // of the error; none: no error
	}{
		{"good", on(mtls), nil},
		{"no server", Config{Identity: mtls}, []string{"server", "--server"}},
		{"plain http", with(on(mtls), func(c *Config) { c.Server = "http://prod:8080" }), []string{"server", "http://prod:8080", "https"}},
		{"no scheme", with(on(mtls), func(c *Config) { c.Server = "prod:6443" }), []string{"server", "prod:6443"}},
		{"password in the server", with(on(mtls), func(c *Config) { c.Server = "https://u:hunter2@prod" }), []string{"server", "password"}},
		{"no identity", on(Identity{}), []string{"auth", "--auth"}},
		{"unknown auth", on(Identity{Auth: "magic"}), []string{"auth", "magic", "sigv4"}},
		{"auth of a later version", on(Identity{Auth: "http-signature"}), []string{"http-signature", "not in this version"}},
		{"malformed URI", on(Identity{Auth: AuthMTLS, Key: "pkcs11:token=a;?pin-value=1234"}), []string{"key", "PKCS#11 URI"}},
		{"mtls without key", on(Identity{Auth: AuthMTLS}), []string{"key", "--key"}},
		{"key with sigv4", on(Identity{Auth: AuthSigV4, Key: "/k"}), []string{"key", "mtls", "sigv4"}},
		{"external id alone", on(Identity{Auth: AuthSigV4, AWSExternalID: "x"}), []string{"aws-external-id", "aws-role-arn"}},
		{"headers without header", on(Identity{Auth: AuthHeaders}), []string{"header", "--header"}},
		{"exec", on(Identity{ExecCommand: "aws", ExecArgs: []string{"eks", "get-token"}, ExecEnv: []string{"A=b=c", "B="}, ExecAPIVersion: "client.authentication.k8s.io/v1beta1", ExecInteractiveMode: "Always"}), nil},
		{"exec without command", on(Identity{Auth: AuthExec}), []string{"exec-command", "--exec-command"}},
		{"exec of an old version", on(Identity{ExecCommand: "aws", ExecAPIVersion: "client.authentication.k8s.io/v1alpha1"}), []string{"exec-api-version", "v1alpha1", "v1beta1"}},
		{"exec in no mode", on(Identity{ExecCommand: "aws", ExecInteractiveMode: "Sometimes"}), []string{"exec-interactive-mode", "IfAvailable"}},
		{"exec with half a variable", on(Identity{ExecCommand: "aws", ExecEnv: []string{"canary"}}), []string{"exec-env", "NAME=VALUE"}},
		{"exec command of mtls", on(Identity{Auth: AuthMTLS, Key: "/k", ExecCommand: "aws"}), []string{"exec-command", "exec", "mtls"}},
		{"region of exec", on(Identity{Auth: AuthExec, ExecCommand: "aws", AWSRegion: "eu-central-1"}), []string{"aws-region", "sigv4", "exec"}},
		{"eks-token", on(Identity{Auth: AuthEKSToken, EKSCluster: "prod", AWSRegion: "eu-central-1", AWSProfile: "ops", AWSRoleARN: "arn", AWSExternalID: "x"}), nil},
		{"eks-token without cluster", on(Identity{Auth: AuthEKSToken}), []string{"eks-cluster", "--eks-cluster"}},
		{"eks-token with a service", on(Identity{Auth: AuthEKSToken, EKSCluster: "prod", AWSService: "eks"}), []string{"aws-service", "sigv4", "eks-token"}},
		{"insecure with authority", with(on(mtls), func(c *Config) { c.InsecureSkipTLSVerify, c.CertificateAuthority = true, "/ca" }), []string{"insecure-skip-tls-verify", "certificate-authority"}},
		{"proxy scheme", with(on(mtls), func(c *Config) { c.ProxyURL = "ftp://p:1" }), []string{"proxy-url", "socks5"}},
		{"policy", with(on(mtls), func(c *Config) { c.ForeignAuthorization = "maybe" }), []string{"foreign-authorization", "passthrough"}},
		{"listen to the world", with(on(mtls), func(c *Config) { c.Listen = []string{"https://0.0.0.0:1"} }), []string{"listen", "loopback"}},
		{"relative socket", with(on(mtls), func(c *Config) { c.Listen = []string{"unix://a/b"} }), []string{"listen", "absolute"}},
		{"metrics address", with(on(mtls), func(c *Config) { c.MetricsAddress = "9090" }), []string{"metrics-address", "HOST:PORT"}},
		{"log level", with(on(mtls), func(c *Config) { c.LogLevel = "loud" }), []string{"log-level", "debug"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.c.Complete()
			if tt.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantWords(t, err, tt.want)
			for _, secret := range []string{"hunter2", "1234"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%q tells a secret", err)
				}
			}
		})
	}
}

// What Extension says, Load reads back to the same.
func TestExtensionRoundTrip(t *testing.T) {
	want := &Config{
		Cluster: Cluster{
			Server: "https://prod:6443", CertificateAuthorityData: []byte("pem"), TLSServerName: "api", ProxyURL: "socks5://p:1", DisableCompression: true,
		},
		Identity: Identity{
			Auth: AuthSigV4, Key: "/k", Cert: "/c", Headers: []string{"A=@/f"}, AWSRegion: "r", AWSService: "s", AWSProfile: "p",
			AWSRoleARN: "a", AWSExternalID: "e", UnsignedPayload: true, SignTarget: true,
		},
		Listen: []string{"https://127.0.0.1:1"}, ForeignAuthorization: Passthrough,
		IdleTimeout: time.Minute, DrainTimeout: time.Second, MetricsAddress: "127.0.0.1:1", LogLevel: "debug", LogFile: "/l", LogFormat: "json",
	}
	data, err := json.Marshal(want.Extension())
	if err != nil {
		t.Fatal(err)
	}
	got, err := Load(Sources{Extension: data})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	got, err = Load(Sources{Flags: func(c *Config) error {
		for _, arg := range want.Arguments() {
			name, value, ok := strings.Cut(arg, "=")
			i := slices.IndexFunc(Fields, func(f *Field) bool { return "--"+f.Flag == name })
			if i < 0 || ok == Fields[i].Switch() {
				return fmt.Errorf("argument %q", arg)
			}
			if !ok {
				value = "true"
			}
			if err := Fields[i].Set(c, value, ""); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("by flags: got  %+v\nwant %+v", got, want)
	}
	doc, ok := FromArguments(want.Arguments())
	if data, err = json.Marshal(doc); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if got, err = Load(Sources{Extension: data}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("from arguments: %v, got  %+v\nwant %+v", err, got, want)
	}
	for _, args := range [][]string{nil, {"--auth=mtls"}, {"--server"}, {"--server=https://a", "x"}, {"--server=https://a", "--unsigned-payload=true"}, {"--server=https://a", "--no-such=1"}} {
		if doc, ok := FromArguments(args); ok {
			t.Errorf("%q: %v", args, doc)
		}
	}
}

func TestFieldNames(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Fields {
		for _, name := range []string{f.Flag, f.Env(), "json " + f.JSON()} {
			if seen[name] {
				t.Errorf("%s stands in the table twice", name)
			}
			seen[name] = true
		}
		if f.Usage == "" || strings.HasSuffix(f.Usage, ".") {
			t.Errorf("--%s: usage %q", f.Flag, f.Usage)
		}
	}
	for flag, want := range map[string]string{"aws-role-arn": "awsRoleArn", "header": "headers", "proxy-url": "proxyUrl"} {
		for _, f := range Fields {
			if f.Flag == flag && f.JSON() != want {
				t.Errorf("--%s is %s in the file, want %s", flag, f.JSON(), want)
			}
		}
	}
}

func FuzzExtension(f *testing.F) {
	f.Add([]byte(`{"upstream":{"server":"https://prod"},"auth":"mtls","key":"/k"}`))
	f.Add([]byte(`{"headers":["A=1"],"listen":["unix:///a"]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Load(Sources{Extension: data})
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		_ = c.Complete()
	})
}

func FuzzFile(f *testing.F) {
	f.Add([]byte(head + "auth: mtls\nkey: a\nlisten: [unix:///a]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, err := decodeYAML(data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		_ = new(Config).applyDocument("file", doc, "/")
	})
}

func TestParseListen(t *testing.T) {
	for in, want := range map[string]Listen{
		"unix:///run/a.sock":      {"unix", "/run/a.sock"},
		"https://127.0.0.1:41001": {"tcp", "127.0.0.1:41001"},
		"https://[::1]:1":         {"tcp", "[::1]:1"},
		"https://localhost:7/":    {"tcp", "127.0.0.1:7"},
		"https://127.0.0.1":       {"tcp", "127.0.0.1:443"},
	} {
		if got, err := ParseListen(in); err != nil || got != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "/a", "unix://a", "http://127.0.0.1:1", "https://10.0.0.1:1", "https://127.0.0.1:x", "https://127.0.0.1:70000", "https://u@127.0.0.1:1", "https://127.0.0.1:1/a", "tcp://127.0.0.1:1", "https://[fe80::1%25lo]:1"} {
		if got, err := ParseListen(in); err == nil {
			t.Errorf("%s: no error, %v", in, got)
		}
	}
}

// The file of a header is a path like any other: a daemon has no directory.
func TestHeaderFiles(t *testing.T) {
	c, err := Load(Sources{Flags: flags("header", "X-A=@token")})
	if want := "X-A=@" + filepath.Join("/work", "token"); err != nil || c.Headers[0] != want {
		t.Errorf("flag: %q, %v; want %s", c.Headers, err, want)
	}
	path := writeFile(t, head+"headers: ['X-A=@token', 'X-B=@@at', 'X-C=a=@b']\n")
	c, err = Load(Sources{File: path})
	if want := []string{"X-A=@" + filepath.Join(filepath.Dir(path), "token"), "X-B=@@at", "X-C=a=@b"}; err != nil || !reflect.DeepEqual(c.Headers, want) {
		t.Errorf("file: %q, %v; want %q", c.Headers, err, want)
	}
	_, err = Load(Sources{Extension: json.RawMessage(`{"headers":["X-A=@token"]}`)})
	wantWords(t, err, []string{"exec extension", "headers", "relative"})
	for h, want := range map[string]bool{"A=@f": true, "A=@@secret": false, "A=b": false, "A=b=@f": false, "A": false} {
		if HeaderFromFile(h) != want {
			t.Errorf("%s from a file: %v", h, !want)
		}
	}
}

// A token stands in many places of a URL.
func TestErrorsShowNoSecretOfURLs(t *testing.T) {
	const canary = "canary"
	for _, s := range []string{
		"https://canary@host", "http://canary@host", "ftp://canary@host", "https://u:canary@host", "https://canary@", "https://host?t=canary", "https://host#canary",
	} {
		if _, err := ServerURL(s); err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v", s, err)
		}
	}
	if _, err := ParseListen("https://canary@127.0.0.1:1?canary"); err == nil || strings.Contains(err.Error(), canary) {
		t.Error(err)
	}
}

// One address has one spelling.
func TestLoopbackSpelling(t *testing.T) {
	for s, want := range map[string]string{
		"https://[::ffff:127.0.0.1]:7": "127.0.0.1:7", "https://127.0.0.1:007": "127.0.0.1:7", "https://[0:0::1]:7": "[::1]:7", "https://LOCALHOST": "127.0.0.1:443",
	} {
		if l, err := ParseListen(s); err != nil || l.Address != want {
			t.Errorf("%s: %+v, %v; want %s", s, l, err, want)
		}
	}
}

func FuzzFromArguments(f *testing.F) {
	f.Add("--server=https://prod\n--auth=mtls\n--key=/k\n--sign-target\n--header=A=@/a\n--header=B=@/b")
	f.Add("--server=https://prod\n--certificate-authority-data=AAAA\n--listen=https://127.0.0.1:1\n--config=/c")
	f.Fuzz(func(t *testing.T, args string) {
		doc, ok := FromArguments(strings.Split(args, "\n"))
		if !ok {
			return
		}
		delete(doc, "config") // a file
		data, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Load(Sources{Extension: data})
		if err != nil {
			return
		}
		// What it says is what it was told.
		again, ok := FromArguments(c.Arguments())
		if !ok {
			t.Fatalf("%q: %q", args, c.Arguments())
		}
		if data, err = json.Marshal(again); err != nil {
			t.Fatal(err)
		}
		if d, err := Load(Sources{Extension: data}); err != nil || !slices.Equal(c.Arguments(), d.Arguments()) {
			t.Fatalf("%q: %q\n%+v, %v", args, c.Arguments(), d, err)
		}
	})
}
