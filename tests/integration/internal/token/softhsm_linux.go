package token

import (
	"context"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// securityOfficerPIN is that of all tokens here.
const securityOfficerPIN = "00000000"

// SoftHSM is a SoftHSM2 of its own: configuration and tokens below one directory.
type SoftHSM struct {
	Module string // path of the PKCS#11 library

	dir string
}

// NewSoftHSM makes one without tokens in dir/hsm.
func NewSoftHSM(dir string) (*SoftHSM, error) {
	module, err := library("libsofthsm2.so", "/usr/lib/softhsm/", "/usr/lib/*/softhsm/", "/usr/lib64/pkcs11/", "/usr/local/lib/softhsm/")
	if err != nil {
		return nil, err
	}
	if _, err := program("softhsm2-util"); err != nil {
		return nil, err
	}
	h := &SoftHSM{Module: module, dir: filepath.Join(dir, "hsm")}
	if err := os.MkdirAll(h.tokens(), 0o700); err != nil {
		return nil, err
	}
	conf := fmt.Sprintf("directories.tokendir = %s\nobjectstore.backend = file\nlog.level = ERROR\n", h.tokens())
	return h, os.WriteFile(h.conf(), []byte(conf), 0o600)
}

func (h *SoftHSM) tokens() string { return filepath.Join(h.dir, "tokens") }
func (h *SoftHSM) conf() string   { return filepath.Join(h.dir, "softhsm2.conf") }

// Env is what programs that load Module need in their environment.
func (h *SoftHSM) Env() map[string]string { return map[string]string{"SOFTHSM2_CONF": h.conf()} }

// Hide takes the directory of all tokens away, Show gives it back.
func (h *SoftHSM) Hide() error { return os.Rename(h.tokens(), h.tokens()+".away") }

// Show undoes Hide.
func (h *SoftHSM) Show() error { return os.Rename(h.tokens()+".away", h.tokens()) }

// Token is one of its tokens.
type Token struct {
	Label, PIN, Serial string
	Slot               uint64

	hsm *SoftHSM
}

var reassigned = regexp.MustCompile(`reassigned to slot (\d+)`)

// InitToken makes a token. Labels need not differ; serial numbers and slots do.
func (h *SoftHSM) InitToken(ctx context.Context, label, pin string) (*Token, error) {
	out, err := run(ctx, h.Env(), "softhsm2-util", "--init-token", "--free", "--label", label, "--so-pin", securityOfficerPIN, "--pin", pin)
	if err != nil {
		return nil, err
	}
	m := reassigned.FindSubmatch(out)
	if m == nil {
		return nil, fmt.Errorf("softhsm2-util --init-token names no slot: %s", out)
	}
	t := &Token{Label: label, PIN: pin, hsm: h}
	if t.Slot, err = strconv.ParseUint(string(m[1]), 10, 64); err != nil {
		return nil, err
	}
	if out, err = run(ctx, h.Env(), "softhsm2-util", "--show-slots"); err != nil {
		return nil, err
	}
	_, slot, _ := strings.Cut(string(out), fmt.Sprintf("Slot %d\n", t.Slot))
	for line := range strings.Lines(slot) {
		if serial, ok := field(line, "Serial number"); ok {
			t.Serial = serial
			return t, nil
		}
	}
	return nil, fmt.Errorf("softhsm2-util --show-slots names no serial number of slot %d: %s", t.Slot, out)
}

// Tool runs pkcs11-tool on the token, past any shim or server, logged in.
func (t *Token) Tool(ctx context.Context, args ...string) ([]byte, error) {
	return run(ctx, t.hsm.Env(), append([]string{
		"pkcs11-tool", "--module", t.hsm.Module,
		"--slot", strconv.FormatUint(t.Slot, 10), "--login", "--pin", t.PIN,
	}, args...)...)
}

// GenerateKey makes a key pair; id is hexadecimal, kind is pkcs11-tool's, as
// EC:prime256v1 or rsa:2048. Of extra, --always-auth is of use.
func (t *Token) GenerateKey(ctx context.Context, id, label, kind string, extra ...string) error {
	_, err := t.Tool(ctx, append([]string{"--keypairgen", "--key-type", kind, "--id", id, "--label", label, "--usage-sign"}, extra...)...)
	return err
}

// WriteCertificate puts a certificate (PEM) beside the key of that id.
func (t *Token) WriteCertificate(ctx context.Context, id, label string, certificate []byte) error {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return fmt.Errorf("no PEM certificate to write to token %s", t.Label)
	}
	path := filepath.Join(t.hsm.dir, "certificate.der")
	if err := os.WriteFile(path, block.Bytes, 0o600); err != nil {
		return err
	}
	_, err := t.Tool(ctx, "--write-object", path, "--type", "cert", "--id", id, "--label", label)
	return err
}
