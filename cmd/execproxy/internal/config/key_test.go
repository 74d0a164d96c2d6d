package config

import (
	"strings"
	"testing"
)

func TestParseKey(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want KeyRef
		errs []string // what an error must name; nil: none
	}{
		{"/k.pem", KeyRef{Home: HomeFile, Path: "/k.pem"}, nil},
		{"tpm:/k.pem", KeyRef{Home: HomeTPM, Path: "/k.pem"}, nil},
		{"tpm:handle=0x81000100", KeyRef{Home: HomeTPM, Handle: 0x81000100}, nil},
		{"", KeyRef{}, []string{"PEM file", "pkcs11:", "tpm:"}},
		{"tpm:", KeyRef{}, []string{"tpm:handle=0x81000100", "tpm:/path"}},
		{"tpm:handle=", KeyRef{}, []string{"0x81000000", "tpm2_getcap"}},
		{"tpm:handle=0x80000000", KeyRef{}, []string{"0x80000000", "0x81000000"}}, // transient
		{"tpm:handle=0x181010001", KeyRef{}, []string{"0x181010001"}},
		{"pkcs11:token", KeyRef{}, []string{"PKCS#11 URI", "name=value"}},
	} {
		got, err := ParseKey(tc.in)
		if tc.errs == nil {
			if err != nil || got != tc.want {
				t.Errorf("%q: got %+v, %v; want %+v", tc.in, got, err, tc.want)
			}
			continue
		}
		if err == nil {
			t.Errorf("%q: got %+v, want an error", tc.in, got)
			continue
		}
		for _, want := range tc.errs {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %q does not name %q", tc.in, err, want)
			}
		}
	}
	got, err := ParseKey("pkcs11:token=a;object=b?pin-value=hunter2")
	if err != nil || got.Home != HomePKCS11 || got.URI.Token() != "a" {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, s := range []string{"PKCS11:token=a;object=b?pin-value=hunter2", "pkcs11:object=b?pin-source=/p"} {
		if r, err := ParseKey(s); err != nil || r.URI == nil {
			t.Errorf("%q: %+v, %v", s, r, err)
		}
	}
	for _, s := range []string{"pkcs11:object=b?pin-source=./p", "pkcs11:object=b?pin-source=file:p", "pkcs11:object=b?module-path=m.so"} {
		if _, err := ParseKey(s); err == nil || !strings.Contains(err.Error(), "absolute") {
			t.Errorf("%q: %v", s, err)
		}
	}
	if _, err := ParseKey("pkcs11:token=a;nonsense?pin-value=hunter2"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v, want an error without the PIN", err)
	}
}

// Relative paths are completed inside what --key and --pin-source say.
func TestKeyPaths(t *testing.T) {
	for _, tc := range []struct{ flag, in, want string }{
		{"key", "k.pem", "/work/k.pem"},
		{"key", "tpm:k.pem", "tpm:/work/k.pem"},
		{"key", "tpm:/k.pem", "tpm:/k.pem"},
		{"key", "tpm:handle=0x81000100", "tpm:handle=0x81000100"},
		{"key", "pkcs11:token=a", "pkcs11:token=a"},
		{"pin-source", "./pin", "/work/pin"},
		{"pin-source", "file:./pin", "file:/work/pin"},
		{"pin-source", "135711", "135711"}, // a PIN for a path: refused, and not shown
		{"pin-source", "|ask", "|ask"},
		{"key", "TPM:k.pem", "TPM:/work/k.pem"},
		{"key", "PKCS11:token=a", "PKCS11:token=a"},
		{"pin-source", "file:///pin", "file:///pin"},
		{"pin-source", "fd:3", "fd:3"},
		{"pin-source", "credential:pin", "credential:pin"},
		{"pin-source", "prompt", "prompt"},
		{"pin-source", "askpass:ssh-askpass", "askpass:ssh-askpass"},
		{"pin-source", "askpass:./bin/ask", "askpass:/work/bin/ask"},
	} {
		c := &Config{}
		if err := flags(tc.flag, tc.in)(c); err != nil {
			t.Errorf("%s %s: %v", tc.flag, tc.in, err)
			continue
		}
		if got := c.Key + c.PINSource; got != tc.want {
			t.Errorf("--%s %s: got %q, want %q", tc.flag, tc.in, got, tc.want)
		}
	}
}

// A typing error must not put a key that is meant for hardware into a file.
func TestKeyScheme(t *testing.T) {
	for v, want := range map[string]string{
		"tpmm:x": "./tpmm:", "pkcs1:token=a?pin-value=hunter2": "pkcs11:", "tpm": "tpm:", "PKCS11": "pkcs11:", "pkcs-11:x": "pkcs11:",
	} {
		if err := flags("key", v)(&Config{}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("--key %s: %v", v, err)
		}
	}
	for _, v := range []string{"key.pem", "./tpmm:x", "/a:b", "TPM:/k", "Pkcs11:token=a", `C:\k`, "tpm.pem"} {
		if err := flags("key", v)(&Config{}); err != nil {
			t.Errorf("--key %s: %v", v, err)
		}
	}
}

// Who renews what by default, and what contradicts what.
func TestCompleteKey(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   Identity
		want string // of Renew; "" with an error
		errs []string
	}{
		{"file", Identity{Key: "/k"}, RenewOff, nil},
		{"file, wanted", Identity{Key: "/k", Renew: RenewNewKey}, RenewNewKey, nil},
		{"TPM file", Identity{Key: "tpm:/k"}, RenewSameKey, nil},
		{"TPM handle", Identity{Key: "tpm:handle=0x81000100", Cert: "/c"}, RenewSameKey, nil},
		{"token", Identity{Key: "pkcs11:token=a;object=b"}, RenewSameKey, nil},
		{"token, off", Identity{Key: "pkcs11:token=a;object=b", Renew: RenewOff}, RenewOff, nil},
		{"handle without certificate", Identity{Key: "tpm:handle=0x81000100"}, "", []string{"cert", "--cert"}},
		{"new key in a handle", Identity{Key: "tpm:handle=0x81000100", Cert: "/c", Renew: RenewNewKey}, "", []string{"renew", "tpm:FILE"}},
		{"new key by id", Identity{Key: "pkcs11:token=a;id=%01", Renew: RenewNewKey}, "", []string{"renew", "object="}},
		{"no such way", Identity{Key: "/k", Renew: "always"}, "", []string{"always", RenewOff, RenewSameKey, RenewNewKey}},
		{"before without renewal", Identity{Key: "/k", RenewBefore: 1}, "", []string{"renew-before", "--renew"}},
		{"PIN of a file", Identity{Key: "/k", PINSource: "/p"}, "", []string{"pin-source", "pkcs11:", "tpm:"}},
		{"module of a TPM", Identity{Key: "tpm:/k", PKCS11Module: "/m"}, "", []string{"pkcs11-module"}},
		{"device of a token", Identity{Key: "pkcs11:object=b", TPMDevice: "/d"}, "", []string{"tpm-device"}},
		{"PIN with sigv4", Identity{Auth: AuthSigV4, PINSource: "/p"}, "", []string{"pin-source", "mtls"}},
	} {
		c := &Config{Cluster: Cluster{Server: "https://prod"}, Identity: tc.in}
		if c.Auth == "" {
			c.Auth = AuthMTLS
		}
		err := c.Complete()
		if tc.errs == nil {
			if err != nil || c.Renew != tc.want {
				t.Errorf("%s: got %q, %v; want %q", tc.name, c.Renew, err, tc.want)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: no error", tc.name)
			continue
		}
		for _, want := range tc.errs {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not name %q", tc.name, err, want)
			}
		}
	}
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"/k", "tpm:handle=0x81000100", "tpm:/k", "pkcs11:token=a;object=b?pin-source=/p"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseKey(s)
		if err == nil && (r.Home == HomePKCS11) != (r.URI != nil) {
			t.Errorf("%q: %+v", s, r)
		}
	})
}
