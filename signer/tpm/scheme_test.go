//go:build !windows

package tpm

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

// salty is a TPM that salts PSS as long as it can, or that does not know all hashes: chips do
// both. It answers TPM2_Sign itself, with a key that it has made up.
type salty struct {
	transport.TPMCloser
	key  *rsa.PrivateKey
	long bool // salts with all there is room for
	less bool // knows SHA-256 alone
}

func (s salty) Send(command []byte) ([]byte, error) {
	const sessions = 4 + 9 // their size, and a password session without password
	switch tpm2.TPMCC(uint32(command[8])<<8 | uint32(command[9])) {
	case tpm2.TPMCCSign:
		parms := command[headerSize+4+sessions:]
		n := int(parms[0])<<8 | int(parms[1])
		digest, rest := parms[2:2+n], parms[2+n:]
		alg, sum := tpm2.TPMAlgID(uint16(rest[0])<<8|uint16(rest[1])), tpm2.TPMAlgID(uint16(rest[2])<<8|uint16(rest[3]))
		if s.less && sum != tpm2.TPMAlgSHA256 {
			return []byte{0x80, 0x01, 0, 0, 0, 10, 0, 0, 0x02, 0xc3}, nil // TPM_RC_HASH, parameter 2
		}
		hash, _ := sum.Hash()
		var sig []byte
		var err error
		if alg == tpm2.TPMAlgRSAPSS {
			salt := hash.Size()
			if s.long {
				salt = s.key.Size() - 2 - hash.Size()
			}
			sig, err = rsa.SignPSS(rand.Reader, s.key, hash, digest, &rsa.PSSOptions{SaltLength: salt})
		} else {
			sig, err = rsa.SignPKCS1v15(nil, s.key, hash, digest)
		}
		if err != nil {
			return nil, err
		}
		body := tpm2.Marshal(tpm2.TPMTSignature{SigAlg: alg, Signature: tpm2.NewTPMUSignature(alg, &tpm2.TPMSSignatureRSA{Hash: sum, Sig: tpm2.TPM2BPublicKeyRSA{Buffer: sig}})})
		return answerWith(body), nil
	}
	return s.TPMCloser.Send(command)
}

// answerWith is a response with one password session.
func answerWith(body []byte) []byte {
	size := headerSize + 4 + len(body) + 5
	out := []byte{0x80, 0x02, 0, 0, byte(size >> 8), byte(size), 0, 0, 0, 0, 0, 0, byte(len(body) >> 8), byte(len(body))}
	return append(append(out, body...), 0, 0, 1, 0, 0)
}

// TestSelfTest: what TLS 1.3 would refuse is not offered, and said.
func TestSelfTest(t *testing.T) {
	pkcs1 := []tls.SignatureScheme{tls.PKCS1WithSHA256, tls.PKCS1WithSHA384, tls.PKCS1WithSHA512}
	pss := []tls.SignatureScheme{tls.PSSWithSHA256, tls.PSSWithSHA384, tls.PSSWithSHA512}
	for name, tc := range map[string]struct {
		long bool
		less bool
		want []tls.SignatureScheme
		says []string
	}{
		"good":      {false, false, append(slices.Clone(pss), pkcs1...), nil},
		"long salt": {true, false, pkcs1, []string{"salts PSS", "PKCS#1 v1.5 alone"}},
		"SHA-256":   {false, true, []tls.SignatureScheme{tls.PSSWithSHA256, tls.PKCS1WithSHA256}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := rsa.GenerateKey(rand.Reader, 2048)
			if err != nil {
				t.Fatal(err)
			}
			at := place{file: "x"}
			l := newLine(salty{newSocket("/nonexistent"), key, tc.long, tc.less})
			defer l.close(patience)
			loaded := &loaded{line: l, key: tpm2.AuthHandle{Handle: 0x80000000, Name: tpm2.TPM2BName{Buffer: make([]byte, 34)}, Auth: tpm2.PasswordAuth(nil)}}
			works, warnings, err := loaded.selfTest(at, key.Public())
			if err != nil {
				t.Fatal(err)
			}
			var got []tls.SignatureScheme
			for _, w := range works {
				got = append(got, w.id)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("schemes %v, want %v", got, tc.want)
			}
			if len(warnings) != len(tc.says) {
				t.Fatalf("warnings %q", warnings)
			}
			for i, w := range warnings {
				t.Log(w)
				if !strings.Contains(w, tc.says[i]) {
					t.Errorf("%q does not say %q", w, tc.says[i])
				}
			}
		})
	}
}

// TestPick: what crypto/tls and crypto/x509 ask for is found.
func TestPick(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	all := schemesOf(key.Public())
	for want, opts := range map[tls.SignatureScheme]crypto.SignerOpts{
		tls.PKCS1WithSHA256: crypto.SHA256,
		tls.PKCS1WithSHA512: crypto.SHA512,
		tls.PSSWithSHA256:   &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256},
		tls.PSSWithSHA384:   &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthAuto, Hash: crypto.SHA384},
		tls.PSSWithSHA512:   &rsa.PSSOptions{SaltLength: 64, Hash: crypto.SHA512},
	} {
		s, err := pick(all, make([]byte, opts.HashFunc().Size()), opts)
		if err != nil || s.id != want {
			t.Errorf("%v, %v, want %v", s.id, err, want)
		}
	}
}
