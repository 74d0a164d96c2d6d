package keyfile

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/execproxy/execproxy/signer/certificate"
)

// source is a text and where it came from.
type source struct {
	path string // "" for memory
	pem  []byte
}

// parseKey finds the one private key. der identifies it.
func parseKey(s source) (key crypto.Signer, der []byte, err error) {
	fail := func(kind error, detail, cure string) (crypto.Signer, []byte, error) {
		return nil, nil, &Error{What: "key", Path: s.path, Err: kind, Detail: detail, Cure: cure}
	}
	all, err := certificate.Blocks("key", s.path, s.pem)
	if err != nil {
		return nil, nil, err
	}
	var found *pem.Block
	for _, b := range all {
		switch {
		case !strings.HasSuffix(b.Type, "PRIVATE KEY"):
			continue
		case found != nil:
			return fail(ErrManyKeys, "", "leave the one that is meant")
		}
		found = b
	}
	switch {
	case found == nil && len(all) > 0 && all[0].Type == "CERTIFICATE":
		return fail(ErrNoKey, "it holds a certificate", "name the key's file with --key, and this one with --cert")
	case found == nil:
		return fail(ErrNoKey, "", "name a PEM file with a PRIVATE KEY block")
	case found.Type == "ENCRYPTED PRIVATE KEY" || strings.Contains(found.Headers["Proc-Type"], "ENCRYPTED"):
		return fail(ErrEncrypted, "", "write it unencrypted, mode 600, with `openssl pkey -in FILE -out NEW`, or keep it in a TPM or token")
	case found.Type == "TSS2 PRIVATE KEY":
		return fail(ErrUnsupported, "it belongs to a TPM", "name it as tpm:"+s.path)
	case found.Type == "OPENSSH PRIVATE KEY":
		return fail(ErrUnsupported, "it has OpenSSH's own format", "convert a copy with `ssh-keygen -p -m PKCS8 -f FILE`")
	}
	var parsed any
	switch found.Type {
	case "PRIVATE KEY":
		parsed, err = x509.ParsePKCS8PrivateKey(found.Bytes)
	case "EC PRIVATE KEY":
		parsed, err = x509.ParseECPrivateKey(found.Bytes)
	case "RSA PRIVATE KEY":
		parsed, err = x509.ParsePKCS1PrivateKey(found.Bytes)
	default:
		return fail(ErrUnsupported, found.Type, "use ECDSA, RSA or Ed25519 in PKCS#8")
	}
	if err != nil { // what the parser says about the bytes of a key does not go on
		return fail(ErrMalformed, "its "+found.Type+" block cannot be parsed", "write it again as PKCS#8 with `openssl pkey -in FILE -out NEW`")
	}
	switch k := parsed.(type) {
	case *ecdsa.PrivateKey:
		switch k.Curve {
		case elliptic.P256(), elliptic.P384(), elliptic.P521():
			return k, found.Bytes, nil
		}
		return fail(ErrUnsupported, "ECDSA on "+k.Curve.Params().Name, "use P-256")
	case *rsa.PrivateKey:
		return k, found.Bytes, nil
	case ed25519.PrivateKey:
		return k, found.Bytes, nil
	}
	return fail(ErrUnsupported, fmt.Sprintf("%T", parsed), "use ECDSA, RSA or Ed25519")
}

// parseChain finds the certificates; one says that the file is the key's, too.
func parseChain(s source, one bool) ([]*x509.Certificate, error) {
	chain, err := certificate.Parse(s.path, s.pem)
	var e *Error
	if one && errors.Is(err, ErrNoCertificate) && errors.As(err, &e) {
		e.Cure += ", or append them to the key's file"
	}
	return chain, err
}
