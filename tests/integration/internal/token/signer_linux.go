package token

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// signer is a key that other people's programs sign SHA-256 digests with; what
// ours do can be held against it.
type signer struct {
	public crypto.PublicKey
	sign   func(digest []byte) ([]byte, error)
}

// Public returns the public key.
func (s *signer) Public() crypto.PublicKey { return s.public }

// Sign signs a SHA-256 digest: ECDSA, or PKCS #1 v1.5.
func (s *signer) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if _, pss := opts.(*rsa.PSSOptions); pss || opts.HashFunc() != crypto.SHA256 {
		return nil, errors.New("this signs SHA-256 digests, and not PSS")
	}
	return s.sign(digest)
}

// digestInfo is what precedes a SHA-256 digest in a signature of PKCS #1 v1.5 (RFC 8017, 9.2).
var digestInfo = []byte{
	0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05, 0x00, 0x04, 0x20,
}

// Signer returns the key of that id, used by pkcs11-tool.
func (t *Token) Signer(ctx context.Context, id string) (crypto.Signer, error) {
	public, err := t.public(ctx, id)
	if err != nil {
		return nil, err
	}
	return &signer{public, func(digest []byte) ([]byte, error) {
		args := []string{"--sign", "--id", id, "--mechanism", "ECDSA", "--signature-format", "openssl"}
		if _, ec := public.(*ecdsa.PublicKey); !ec {
			args = []string{"--sign", "--id", id, "--mechanism", "RSA-PKCS"}
			digest = append(digestInfo[:len(digestInfo):len(digestInfo)], digest...)
		}
		return through(t.hsm.dir, digest, func(in, out string) error {
			_, err := t.Tool(ctx, append(args, "--input-file", in, "--output-file", out)...)
			return err
		})
	}}, nil
}

// public reads the public key of that id. Of EC keys pkcs11-tool 0.23 can read
// P-256 alone, but it lists the points of them all, and then their ids.
func (t *Token) public(ctx context.Context, id string) (crypto.PublicKey, error) {
	objects, err := t.Tool(ctx, "--list-objects", "--type", "pubkey")
	if err != nil {
		return nil, err
	}
	var point string
	for line := range strings.Lines(string(objects)) {
		if strings.HasPrefix(line, "Public Key Object") {
			point = ""
		} else if value, ok := field(line, "EC_POINT"); ok {
			point = value
		} else if value, ok := field(line, "ID"); ok && value == id && point != "" {
			return parsePoint(point)
		}
	}
	der := filepath.Join(t.hsm.dir, "public.der")
	if _, err := t.Tool(ctx, "--read-object", "--type", "pubkey", "--id", id, "--output-file", der); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(der)
	if err != nil {
		return nil, err
	}
	return x509.ParsePKIXPublicKey(data)
}

// parsePoint reads a CKA_EC_POINT in hexadecimal: an uncompressed point in an OCTET STRING.
func parsePoint(text string) (crypto.PublicKey, error) {
	der, err := hex.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("EC_POINT %s: %w", text, err)
	}
	var point []byte
	if _, err := asn1.Unmarshal(der, &point); err != nil {
		return nil, fmt.Errorf("EC_POINT %s: %w", text, err)
	}
	curve := elliptic.P256()
	if len(point) == 1+2*48 {
		curve = elliptic.P384()
	}
	return ecdsa.ParseUncompressedPublicKey(curve, point)
}

// Signer returns the key at that persistent handle, used by tpm2-tools.
func (s *SWTPM) Signer(ctx context.Context, handle uint32, password string) (crypto.Signer, error) {
	key := fmt.Sprintf("0x%08x", handle)
	if _, err := s.Tool(ctx, "tpm2_readpublic", "-Q", "-c", key, "-f", "pem", "-o", s.path("public.pem")); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(s.path("public.pem"))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("tpm2_readpublic wrote no PEM: %q", data)
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	scheme := "rsassa"
	if _, ec := public.(*ecdsa.PublicKey); ec {
		scheme = "ecdsa"
	}
	return &signer{public, func(digest []byte) ([]byte, error) {
		return through(s.dir, digest, func(in, out string) error {
			_, err := s.Tool(ctx, "tpm2_sign", "-Q", "-c", key, "-p", password, "-g", "sha256", "-s", scheme, "-d", "-f", "plain", "-o", out, in)
			return err
		})
	}}, nil
}

// through gives a program its input and takes its output in files.
func through(dir string, input []byte, program func(in, out string) error) ([]byte, error) {
	dir, err := os.MkdirTemp(dir, "sign")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, input, 0o600); err != nil {
		return nil, err
	}
	if err := program(in, out); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}
