package config

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// sample is a value of the field that every source takes.
func sample(f *Field) string {
	switch {
	case f.Switch():
		return "true"
	case f.Flag == "certificate-authority-data":
		return "cGVt"
	case f.Arg == "DURATION":
		return "90s"
	case f.Flag == "header":
		return "X-A=@/file"
	case f.Flag == "extension-policy":
		return ExtensionCluster
	case f.Path, f.Flag == "pin-source":
		return "/" + f.Flag
	}
	return f.Flag + "-value"
}

// Whatever the extension may say, a flag and an environment variable may say, and it
// means the same: clients exist that hand no extension on.
func TestEveryFieldFromEverySource(t *testing.T) {
	extended := 0
	for _, f := range Fields {
		t.Run(f.Flag, func(t *testing.T) {
			v := sample(f)
			byFlag, err := Load(Sources{Flags: flags(f.Flag, v)})
			if err != nil {
				t.Fatal(err)
			}
			if reflect.DeepEqual(byFlag, &Config{}) {
				t.Fatal("the flag says nothing")
			}
			if f.Flag == "config" {
				return // the environment's is read at once; TestPrecedence
			}
			byEnv, err := Load(Sources{Environ: env(map[string]string{f.Env(): v})})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(byEnv, byFlag) {
				t.Errorf("%s says %+v, the flag %+v", f.Env(), byEnv, byFlag)
			}
			if f.noFile {
				return
			}
			extended++
			var said any = v
			switch {
			case f.Switch():
				said = true
			case f.List:
				said = []string{v}
			}
			doc := map[string]any{f.JSON(): said}
			if f.upstream {
				doc = map[string]any{"upstream": map[string]any{f.Flag: said}}
			}
			data, err := json.Marshal(doc)
			if err != nil {
				t.Fatal(err)
			}
			byExtension, err := Load(Sources{Extension: data})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(byExtension, byFlag) {
				t.Errorf("the extension says %+v, the flag %+v", byExtension, byFlag)
			}
		})
	}
	if extended < 25 {
		t.Errorf("only %d fields of the extension", extended)
	}
}

// What others write names no file, program or key of this machine, and does not
// choose how that is decided.
func TestExtensionPolicy(t *testing.T) {
	narrow := Sources{Handed: true, Flags: flags("extension-policy", ExtensionCluster)}
	load := func(doc map[string]any) (*Config, error) {
		data, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		narrow.Extension = data
		return Load(narrow)
	}
	allowed := map[string]bool{
		"server": true, "certificate-authority-data": true, "tls-server-name": true, "insecure-skip-tls-verify": true, "proxy-url": true, "disable-compression": true,
		"aws-region": true, "aws-service": true, "aws-role-arn": true, "aws-external-id": true, "eks-cluster": true,
	}
	for _, f := range Fields {
		var said any = sample(f)
		switch {
		case f.Switch():
			said = true
		case f.List:
			said = []string{sample(f)}
		}
		docs := []map[string]any{{f.JSON(): said}}
		if f.upstream {
			docs = append(docs, map[string]any{"upstream": map[string]any{f.Flag: said}})
		}
		for _, doc := range docs {
			_, err := load(doc)
			if allowed[f.Flag] != (err == nil) {
				t.Errorf("%v: %v", doc, err)
			}
			if err != nil && !strings.Contains(err.Error(), f.JSON()) && !strings.Contains(err.Error(), f.Flag) {
				t.Errorf("%v: %v does not name it", doc, err)
			}
		}
	}
	_, err := load(map[string]any{"key": "/k"})
	wantWords(t, err, []string{"exec extension: key", "--extension-policy", "arguments"})

	// The environment may say it, a flag wins, and it is nothing to other commands:
	// what they read is their user's own.
	narrow = Sources{Handed: true, Extension: json.RawMessage(`{"key":"/k"}`), Environ: env(map[string]string{"EXECPROXY_EXTENSION_POLICY": ExtensionCluster})}
	if _, err := Load(narrow); err == nil {
		t.Error("the environment's policy does not hold")
	}
	narrow.Flags = flags("extension-policy", ExtensionAll)
	if _, err := Load(narrow); err != nil {
		t.Error(err)
	}
	narrow.Flags, narrow.Handed = nil, false
	if _, err := Load(narrow); err != nil {
		t.Error(err)
	}
	narrow.Flags = flags("extension-policy", "some")
	if _, err := Load(narrow); err == nil {
		t.Error("a policy that is none")
	}
}

func TestProviderName(t *testing.T) {
	for name, good := range map[string]bool{
		"fleet": true, "google.com/fleet_1-a": true, strings.Repeat("a", 63): true,
		"": false, "a b": false, `a"`: false, "a\n": false, "é": false, strings.Repeat("a", 64): false,
	} {
		if ProviderName(name) != good {
			t.Errorf("%q: %v", name, !good)
		}
	}
}

// What Args says, the command line reads back to the same.
func TestArgs(t *testing.T) {
	want := &Config{Identity: Identity{Auth: AuthMTLS, Key: "pkcs11:token=a?module-path=/m", PINSource: "/pin", Renew: RenewOff}, Listen: []string{"unix:///a", "unix:///b"}, LogLevel: "debug"}
	want.UnsignedPayload = true
	args := want.Arguments(GroupCluster)
	got, err := Load(Sources{Flags: func(c *Config) error {
		said := map[string][]string{}
		for _, a := range args {
			name, value, ok := strings.Cut(strings.TrimPrefix(a, "--"), "=")
			if !ok {
				value = "true"
			}
			said[name] = append(said[name], value)
		}
		for _, f := range Fields {
			if v := said[f.Flag]; v != nil {
				if err := f.SetAll(c, v, ""); err != nil {
					return err
				}
			}
		}
		return nil
	}})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%q, %v\ngot  %+v\nwant %+v", args, err, got, want)
	}
}

// Whatever the extension is, nothing of this machine comes out of it.
func FuzzExtensionPolicy(f *testing.F) {
	f.Add([]byte(`{"upstream":{"server":"https://prod","certificate-authority":"/ca"},"auth":"mtls","key":"/k"}`))
	f.Add([]byte(`{"awsRegion":"r","config":"/c"}`))
	f.Add([]byte(`{"upstream":null,"KEY":"/k","Upstream":{"key":"/k"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Load(Sources{Extension: data, Handed: true, Flags: flags("extension-policy", ExtensionCluster)})
		if err != nil {
			return
		}
		left := *c
		left.Cluster = Cluster{CertificateAuthority: c.CertificateAuthority}
		left.AWSRegion, left.AWSService, left.AWSRoleARN, left.AWSExternalID, left.EKSCluster, left.ExtensionPolicy = "", "", "", "", "", ""
		if !reflect.DeepEqual(left, Config{}) {
			t.Errorf("%s says %+v", data, left)
		}
	})
}
