package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/execproxy/execproxy/signer/pkcs11"
)

// Where a key lives.
const (
	HomeFile   = "file"
	HomeTPM    = "tpm"
	HomePKCS11 = "pkcs11"
)

// A KeyRef is what --key says.
type KeyRef struct {
	Home   string
	Path   string      // of a PEM file, or a TPM's TSS2 file
	Handle uint32      // of a TPM's persistent key; 0 with a file
	URI    *pkcs11.URI // of a token's key
}

// ParseKey reads a path, pkcs11:… (RFC 7512), tpm:handle=0x81000100 or tpm:/path.
// Its errors show nothing of a URI's attributes, one of which may be a PIN.
func ParseKey(s string) (KeyRef, error) {
	switch scheme, rest, _ := strings.Cut(s, ":"); strings.ToLower(scheme) { // RFC 3986, section 3.1
	case HomePKCS11:
		uri, err := pkcs11.ParseURI(HomePKCS11 + ":" + rest)
		if err != nil {
			return KeyRef{}, err
		}
		// A plugin has no directory of its own.
		if p := uri.PINSource(); strings.HasPrefix(p, "./") || strings.HasPrefix(p, "../") || strings.HasPrefix(p, "file:") && !strings.HasPrefix(p, "file:/") {
			return KeyRef{}, errors.New("pin-source in the URI is a relative path; write it absolute")
		}
		if p := uri.ModulePath(); p != "" && !filepath.IsAbs(p) {
			return KeyRef{}, errors.New("module-path in the URI is a relative path; write it absolute")
		}
		return KeyRef{Home: HomePKCS11, URI: uri}, nil
	case HomeTPM:
		number, isHandle := strings.CutPrefix(rest, "handle=")
		switch {
		case rest == "":
			return KeyRef{}, errors.New("tpm: names no key; write tpm:handle=0x81000100 or tpm:/path/key.pem")
		case !isHandle:
			return KeyRef{Home: HomeTPM, Path: rest}, nil
		}
		h, err := strconv.ParseUint(number, 0, 32)
		if err != nil || h>>24 != 0x81 {
			return KeyRef{}, fmt.Errorf("tpm:handle=%q is no persistent handle, which are 0x81000000 to 0x81ffffff; `tpm2_getcap handles-persistent` lists them", number)
		}
		return KeyRef{Home: HomeTPM, Handle: uint32(h)}, nil
	case "":
		return KeyRef{}, errors.New("names no key; write the path of a PEM file, pkcs11:… or tpm:…")
	}
	return KeyRef{Home: HomeFile, Path: s}, nil
}

// Hardware reports a key that cannot leave its home.
func (r KeyRef) Hardware() bool { return r.Home != HomeFile }

// keyPath is the path in what --key says, for completion, and what stands before it.
func keyPath(v string) (prefix, path string) {
	scheme, rest, ok := strings.Cut(v, ":")
	switch {
	case ok && strings.EqualFold(scheme, HomePKCS11):
		return "", ""
	case ok && strings.EqualFold(scheme, HomeTPM):
		if strings.HasPrefix(rest, "handle=") {
			return "", ""
		}
		return v[:len(scheme)+1], rest
	}
	return "", v
}

var scheme = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]+)(:|$)`) })

// checkScheme refuses what looks like a key in hardware and would become one in a
// file. It shows nothing of what follows the scheme.
func checkScheme(v string) error {
	m := scheme().FindStringSubmatch(v)
	if m == nil {
		return nil
	}
	known := strings.EqualFold(m[1], HomePKCS11) || strings.EqualFold(m[1], HomeTPM)
	switch {
	case m[2] == ":" && !known:
		return fmt.Errorf("%s: is no place for a key; they are pkcs11:… and tpm:…, and a file of such a name is written ./%s:…", m[1], m[1])
	case m[2] == "" && known:
		return fmt.Errorf("%s names no key; write %s:…, or ./%s for a file of that name", m[1], strings.ToLower(m[1]), m[1])
	}
	return nil
}

// pinPath is the same of --pin-source. A bare word is no path: it may be a PIN that
// somebody typed for one, which would show up in messages.
func pinPath(v string) (prefix, path string) {
	for _, scheme := range []string{"", "file:", "askpass:"} {
		rest, ok := strings.CutPrefix(v, scheme)
		if ok && (strings.HasPrefix(rest, "./") || strings.HasPrefix(rest, "../")) {
			return scheme, rest
		}
	}
	return "", ""
}

// KeyRef is Key, parsed.
func (c *Config) KeyRef() (KeyRef, error) {
	r, err := ParseKey(c.Key)
	if err != nil {
		return r, &FieldError{"", "key", err}
	}
	return r, nil
}

// CompleteKey checks what is said of the key alone: `execproxy key` knows no
// cluster. Complete does it for mtls.
func (c *Config) CompleteKey() error {
	if c.Key == "" {
		return &FieldError{"", "key", errors.New("no key named; say --key FILE, --key tpm:handle=0x81000100, --key tpm:FILE or --key 'pkcs11:token=…;object=…'")}
	}
	return c.checkKey()
}

func (c *Config) checkKey() error {
	r, err := c.KeyRef()
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name  string
		set   bool
		homes string
	}{
		{"pin-source", c.PINSource != "", HomePKCS11 + " " + HomeTPM},
		{"pkcs11-module", c.PKCS11Module != "", HomePKCS11},
		{"tpm-device", c.TPMDevice != "", HomeTPM},
	} {
		if f.set && !strings.Contains(f.homes, r.Home) {
			return &FieldError{"", f.name, fmt.Errorf("goes with %s keys, but the key is in a %s; drop one of the two (flag, environment or file)", strings.ReplaceAll(f.homes, " ", ": and ")+":", r.Home)}
		}
	}
	if c.Cert == "" && r.Path != "" {
		c.Cert = r.Path // one file may hold both
	}
	return c.checkRenew(r)
}

// CheckCert sees to it that there is a place for the certificate.
func (c *Config) CheckCert() error {
	if r, err := c.KeyRef(); err == nil && c.Cert == "" && r.Handle != 0 {
		return &FieldError{"", "cert", errors.New("a TPM's handle holds no certificate; say --cert FILE, where its chain is or shall be")}
	}
	return nil
}

func (c *Config) checkRenew(r KeyRef) error {
	switch c.Renew {
	case "":
		c.Renew = c.standardRenew()
	case RenewOff, RenewSameKey:
	case RenewNewKey:
		switch {
		case r.Handle != 0:
			return &FieldError{"", "renew", errors.New("new-key: a TPM's handle is that of one key; keep the key in a TSS2 file (tpm:FILE), or say same-key")}
		case r.URI != nil && (len(r.URI.ID()) > 0 || r.URI.Object() == ""):
			return &FieldError{"", "renew", errors.New("new-key: a key named by its id is that one; name it by its label alone (object=…), or say same-key")}
		}
	default:
		return &FieldError{"", "renew", fmt.Errorf("%q is none of %s, %s, %s", c.Renew, RenewSameKey, RenewNewKey, RenewOff)}
	}
	if c.RenewBefore != 0 && c.Renew == RenewOff {
		return &FieldError{"", "renew-before", errors.New("means something only where the certificate is renewed; say --renew same-key or --renew new-key")}
	}
	return nil
}

// standardRenew is what Renew is when nobody says it: who keeps a key in hardware
// has nobody else to renew its certificate; files mostly have an owner who does.
func (c *Config) standardRenew() string {
	if r, err := ParseKey(c.Key); err == nil && c.Key != "" && r.Hardware() {
		return RenewSameKey
	}
	if c.Auth == AuthMTLS {
		return RenewOff
	}
	return ""
}
