package tpm

import (
	"bytes"
	"crypto"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	keyfile "github.com/foxboron/go-tpm-keyfiles"
	"github.com/google/go-tpm/tpm2"
)

const maxFile = 1 << 16 // bytes; a key of RSA 4096 has 2.5 kB

const blobType = "TSS2 PRIVATE KEY"

// blob is what a TSS2 PRIVATE KEY file holds.
type blob struct {
	parent  tpm2.TPMHandle
	public  tpm2.TPM2BPublic
	private tpm2.TPM2BPrivate
	auth    auth

	area   tpm2.TPMTPublic // what public holds
	key    crypto.PublicKey
	warned string // "" or what should be mended
}

// auth is what a file says about the key's password.
type auth int

const (
	authUnknown auth = iota
	authEmpty
	authNeeded
)

func readBlob(at place) (*blob, error) {
	f, err := os.OpenFile(at.file, os.O_RDONLY|nonblock, 0)
	if err == nil {
		defer f.Close()
	}
	var info fs.FileInfo
	if err == nil {
		info, err = f.Stat()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, at.fail(fmt.Errorf("%w: %w", ErrNoKey, fs.ErrNotExist), "", "check the path, or make one with `execproxy key create`")
	case err != nil:
		return nil, at.fail(fmt.Errorf("%w: %w", ErrNoKey, plain(err)), "", "make it readable for the user that runs this")
	case !info.Mode().IsRegular():
		return nil, at.fail(ErrMalformed, "no regular file", "name a file")
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, at.fail(fmt.Errorf("%w: %w", ErrNoKey, plain(err)), "", "")
	}
	b, err := parseBlob(at, text)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); privateModes && mode&0o077 != 0 {
		b.warned = fmt.Sprintf("%s: readable by others (mode %04o), who can use it on this machine: chmod 600 %s", at, mode, at.file)
	}
	return b, nil
}

// parseBlob reads the one TSS2 PRIVATE KEY block of a PEM text.
func parseBlob(at place, text []byte) (*blob, error) {
	bad := func(detail, cure string) (*blob, error) { return nil, at.fail(ErrMalformed, detail, cure) }
	if len(text) > maxFile {
		return bad("it is too large", "name a PEM file")
	}
	var found []*pem.Block
	all := 0
	for rest := text; ; all++ {
		var p *pem.Block
		if p, rest = pem.Decode(rest); p == nil {
			break
		}
		if p.Type == blobType {
			found = append(found, p)
		}
	}
	switch {
	case bytes.Count(text, []byte("-----BEGIN ")) > all:
		return bad("a block is broken or cut short", "write it again")
	case len(found) == 0 && all > 0:
		return bad("it holds no "+blobType, "a key that is in no TPM is named by its path, without tpm:")
	case len(found) == 0:
		return bad("it is no PEM file", "make one with `execproxy key create` or `tpm2_encodeobject`")
	case len(found) > 1:
		return bad("it holds more than one key", "leave the one that is meant")
	}
	k, err := parseTSS2(found[0].Bytes)
	if err != nil {
		return bad(err.Error(), "make it anew")
	}
	b := &blob{parent: k.Parent, public: k.Pubkey, private: k.Privkey}
	b.auth = authOf(found[0].Bytes)
	switch {
	case k.Keytype.Equal(keyfile.OIDSealedKey):
		return nil, at.fail(ErrUnsupported, "it holds sealed data, no key to sign with", "name another file")
	case k.Keytype.Equal(keyfile.OIDImportableKey):
		return nil, at.fail(ErrUnsupported, "it is still to be imported, so it was made outside the TPM", "make a key in the TPM with `execproxy key create`")
	}
	area, err := b.public.Contents()
	if err != nil {
		return bad("its public half cannot be parsed", "make it anew")
	}
	b.area = *area
	if b.key, err = usable(at, b.area); err != nil {
		return nil, err
	}
	return b, nil
}

// parseTSS2 guards against what the two parsers below it have never seen: a file must not be
// able to end the process.
func parseTSS2(der []byte) (k *keyfile.TPMKey, err error) {
	defer func() {
		if recover() != nil {
			k, err = nil, errors.New("it cannot be parsed")
		}
	}()
	return keyfile.Parse(der)
}

// authOf reads the optional field emptyAuth. Left out, it means that there is a password. Where
// it is there only DER's own true says anything: tpm2-tools before 2025 wrote the contrary of
// what is (issue 3458), and write true as 1, as the OpenSSL provider does.
func authOf(der []byte) auth {
	var seq, oid, field, value asn1.RawValue
	if _, err := asn1.Unmarshal(der, &seq); err != nil {
		return authUnknown
	}
	rest, err := asn1.Unmarshal(seq.Bytes, &oid)
	if err != nil {
		return authUnknown
	}
	if _, err := asn1.Unmarshal(rest, &field); err != nil || field.Class != asn1.ClassContextSpecific || field.Tag != 0 {
		return authNeeded
	}
	if _, err := asn1.Unmarshal(field.Bytes, &value); err == nil && bytes.Equal(value.Bytes, []byte{0xff}) {
		return authEmpty
	}
	return authUnknown
}

// encode writes the file of a key that was made under parent.
func encode(parent tpm2.TPMHandle, public tpm2.TPM2BPublic, private tpm2.TPM2BPrivate, password []byte) []byte {
	k := keyfile.NewTPMKey(keyfile.OIDLoadableKey, public, private,
		keyfile.WithParent(parent), keyfile.WithUserAuth(password))
	return pem.EncodeToMemory(&pem.Block{Type: blobType, Bytes: keyfile.Marshal(k)})
}

// plain takes the path off an error, as the message has it already.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
