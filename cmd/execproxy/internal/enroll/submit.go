package enroll

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
)

// names bounds the requests of one key that are in each other's way.
const names = 16

// An Order is a request as it is to be submitted.
type Order struct {
	CSR        []byte        // PEM, from NewRequest
	SignerName string        // "": by the subject, see DefaultSigner
	Expiration time.Duration // of the certificate; 0: as the signer likes, else at least MinExpiration
	Name       string        // "": from public key, subject and Salt, so that it is found again
	Salt       string

	// stands is for how long the last denial is the answer to this order, too.
	stands time.Duration
}

// Submitted is a request that the API has.
type Submitted struct {
	Name       string
	SignerName string
	Adopted    bool      // it was there already
	Created    time.Time // by the server's clock

	uid    string
	public crypto.PublicKey // that the certificate must be for
}

// Submit hands an order to the API. A request that is there already and is the same in all
// is adopted: one that waits, or one with a certificate that has the better part of its life
// ahead. One of the same name that was denied, has failed, is used up or somebody else's
// makes Submit take the next name, or is an error where the order names one.
//
// It waits where the server asks for it (429, 5xx), a few times, and fails with an
// *[APIError] where the server refuses.
func (c *Client) Submit(ctx context.Context, o Order) (*Submitted, error) {
	csr, err := parseRequest(o.CSR)
	if err != nil {
		return nil, err
	}
	if o.SignerName == "" {
		o.SignerName = DefaultSigner(csr.Subject)
	}
	want := &object{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest",
		Spec: spec{Request: o.CSR, SignerName: o.SignerName, Usages: usages(csr.PublicKey)}}
	switch n := int64(o.Expiration / time.Second); {
	case o.Expiration == 0:
	case o.Expiration < MinExpiration:
		return nil, fmt.Errorf("certificate request: a life of %v is less than the API allows: ask for 10 minutes or more", o.Expiration)
	case n > math.MaxInt32:
		return nil, fmt.Errorf("certificate request: a life of %v is more than the API can say: ask for 68 years or less", o.Expiration)
	default:
		want.Spec.ExpirationSeconds = new(int32(n))
	}
	if o.Name != "" {
		if o.Name == "." || o.Name == ".." || strings.ContainsAny(o.Name, "/%") {
			return nil, fmt.Errorf("certificate signing request %q: no name of an object: choose one of lower-case letters, digits and dashes", o.Name)
		}
		s, obstacle, err := c.place(ctx, o.Name, want, csr, o.stands)
		if err == nil && s == nil {
			err = fmt.Errorf("certificate signing request %s is there already and %s: choose another name, or have it removed: kubectl delete certificatesigningrequest %s", o.Name, obstacle, quote(o.Name))
		}
		return s, err
	}
	for n := range names {
		if s, _, err := c.place(ctx, digest(csr, o.Salt, n), want, csr, o.stands); s != nil || err != nil {
			return s, err
		}
	}
	first := digest(csr, o.Salt, 0)
	return nil, fmt.Errorf("%d earlier certificate signing requests of this key, from %s on, are in the way: have them removed: kubectl delete certificatesigningrequest %s …", names, first, first)
}

// digest names the n-th request of a key and subject.
func digest(csr *x509.CertificateRequest, salt string, n int) string {
	h := sha256.New()
	for _, part := range [][]byte{csr.RawSubjectPublicKeyInfo, csr.RawSubject, []byte(salt)} {
		_ = binary.Write(h, binary.BigEndian, uint64(len(part)))
		h.Write(part)
	}
	_ = binary.Write(h, binary.BigEndian, uint64(n))
	// Collisions only cost a name; people type it.
	return "execproxy-" + hex.EncodeToString(h.Sum(nil)[:10])
}

// place creates the request under name, or adopts what is there. It returns neither where
// that is an obstacle.
func (c *Client) place(ctx context.Context, name string, want *object, csr *x509.CertificateRequest, stands time.Duration) (s *Submitted, obstacle string, err error) {
	o := *want
	o.Metadata.Name = name
	for try := 1; ; try++ {
		got, err := c.create(ctx, &o)
		adopted := false
		if refused(err, http.StatusConflict) {
			got, err = c.seek(ctx, name)
			if refused(err, http.StatusNotFound) && try < tries {
				continue // it was removed in between
			}
			adopted = true
		}
		switch {
		case err != nil:
			return nil, "", err
		case got.Metadata.Name != name:
			return nil, "", c.stranger(call{action: "creating certificate signing request " + name}, http.StatusOK,
				fmt.Errorf("it is about %q", oneLine(got.Metadata.Name, 60)))
		}
		if adopted {
			if obstacle, err = hindrance(got, want, csr, stands); obstacle != "" || err != nil {
				return nil, obstacle, err
			}
		}
		return &Submitted{Name: name, SignerName: want.Spec.SignerName, Adopted: adopted,
			Created: got.Metadata.CreationTimestamp, uid: got.Metadata.UID, public: csr.PublicKey}, "", nil
	}
}

// seek reads a request that is known to be there.
func (c *Client) seek(ctx context.Context, name string) (*object, error) {
	got := new(object)
	return got, c.patient(ctx, call{action: "reading certificate signing request " + name, method: http.MethodGet, name: name}, got)
}

// hindrance is why a request that is there cannot be adopted; "" if it can.
func hindrance(got, want *object, csr *x509.CertificateRequest, stands time.Duration) (string, error) {
	theirs, err := parseRequest(got.Spec.Request)
	if err != nil || !equalKeys(csr.PublicKey, theirs.PublicKey) || !bytes.Equal(csr.RawSubject, theirs.RawSubject) {
		return "is somebody else's", nil
	}
	a, b := slices.Clone(got.Spec.Usages), slices.Clone(want.Spec.Usages)
	slices.Sort(a)
	slices.Sort(b)
	if got.Spec.SignerName != want.Spec.SignerName || !slices.Equal(a, b) || !equal(got.Spec.ExpirationSeconds, want.Spec.ExpirationSeconds) {
		return "asks for another certificate", nil
	}
	if denied := got.condition(conditionDenied); denied != nil {
		if stands > 0 && time.Since(denied.LastUpdateTime) < stands {
			return "", denial(got, denied)
		}
		return "was denied", nil
	}
	if got.condition(conditionFailed) != nil {
		return "has failed", nil
	}
	if len(got.Status.Certificate) == 0 {
		return "", nil
	}
	chain, err := parseChain(got.Metadata.Name, got.Status.Certificate)
	if err == nil {
		err = check(got.Metadata.Name, chain, csr.PublicKey, time.Now())
	}
	if err != nil || time.Until(chain[0].NotAfter) < chain[0].NotAfter.Sub(chain[0].NotBefore)/2 {
		return "is used up", nil
	}
	return "", nil
}

func denial(o *object, c *condition) error {
	return &DeniedError{Name: o.Metadata.Name, Reason: oneLine(c.Reason, 100), Message: oneLine(c.Message, 300)}
}

func equal(a, b *int32) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// refused tells whether err is the server's answer of that code.
func refused(err error, code int) bool {
	var e *APIError
	return errors.As(err, &e) && e.Status == code
}
