package enroll

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The signers of kube-controller-manager that give out client certificates.
const (
	// SignerClient is never approved by itself: an administrator does it.
	SignerClient = "kubernetes.io/kube-apiserver-client"
	// SignerKubelet is for nodes, and may be approved by kube-controller-manager.
	SignerKubelet = "kubernetes.io/kube-apiserver-client-kubelet"
)

// MinExpiration is the shortest life of a certificate that the API lets anyone ask for.
const MinExpiration = 10 * time.Minute

// kube-controller-manager dates certificates back by this much, and does not take it off
// their end where they are asked for shortLife or less (its authority.PermissiveSigningPolicy).
const (
	backdate  = 5 * time.Minute
	shortLife = 8 * time.Hour
)

// DefaultSigner is the signer that certificates for subject come from: the kubelet's for
// nodes (CN system:node:…, O system:nodes and no other), else [SignerClient].
func DefaultSigner(subject pkix.Name) string {
	if strings.HasPrefix(subject.CommonName, "system:node:") && slices.Equal(subject.Organization, []string{"system:nodes"}) {
		return SignerKubelet
	}
	return SignerClient
}

// NewRequest makes a certificate request for subject, signed by key, in PEM. The common
// name is the user that Kubernetes will see, the organizations are their groups.
//
// Where key has a method SupportedSignatureAlgorithms() []tls.SignatureScheme, one of these
// is used. RSA keys sign with PKCS #1 v1.5 where they can, as more signers understand it,
// and with PSS where not.
func NewRequest(key crypto.Signer, subject pkix.Name) ([]byte, error) {
	if subject.CommonName == "" {
		return nil, errors.New("certificate request: the subject has no common name: give it the user's name")
	}
	return newRequest(key, x509.CertificateRequest{Subject: subject})
}

// Renewal makes the order that renews current with key, which may be the same or a new one:
// for the same subject, byte for byte, and the same life. signerName may be "". Whoever
// renews the same certificate with the same key makes the same order: they share one
// request, and it is approved once.
func Renewal(key crypto.Signer, current *x509.Certificate, signerName string) (Order, error) {
	if signerName == "" {
		signerName = DefaultSigner(current.Subject)
	}
	csr, err := newRequest(key, x509.CertificateRequest{RawSubject: current.RawSubject})
	if err != nil {
		return Order{}, err
	}
	print := sha256.Sum256(current.Raw)
	return Order{CSR: csr, SignerName: signerName, Expiration: life(current, signerName), Salt: hex.EncodeToString(print[:])}, nil
}

// life is what was asked for when c was ordered, as far as c shows it. Without this a short
// certificate would grow by backdate with each renewal.
func life(c *x509.Certificate, signerName string) time.Duration {
	d := c.NotAfter.Sub(c.NotBefore)
	if d < shortLife && strings.HasPrefix(signerName, "kubernetes.io/") {
		d -= backdate
	}
	return max(d, MinExpiration)
}

func newRequest(key crypto.Signer, template x509.CertificateRequest) ([]byte, error) {
	algorithms, err := algorithms(key)
	if err != nil {
		return nil, err
	}
	var first error
	for _, a := range algorithms {
		template.SignatureAlgorithm = a
		// It verifies what the key made of it.
		der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
		if err == nil {
			return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, fmt.Errorf("signing the certificate request: %w", first)
}

var rsaAlgorithms = []struct {
	scheme    tls.SignatureScheme
	algorithm x509.SignatureAlgorithm
}{
	{tls.PKCS1WithSHA256, x509.SHA256WithRSA},
	{tls.PKCS1WithSHA384, x509.SHA384WithRSA},
	{tls.PKCS1WithSHA512, x509.SHA512WithRSA},
	{tls.PSSWithSHA256, x509.SHA256WithRSAPSS},
	{tls.PSSWithSHA384, x509.SHA384WithRSAPSS},
	{tls.PSSWithSHA512, x509.SHA512WithRSAPSS},
}

// algorithms are those to try. A key that knows its own is asked for one signature only: a
// try may cost a PIN.
func algorithms(key crypto.Signer) ([]x509.SignatureAlgorithm, error) {
	var kind string
	switch public := key.Public().(type) {
	case *ecdsa.PublicKey:
		switch public.Curve {
		case elliptic.P256():
			return []x509.SignatureAlgorithm{x509.ECDSAWithSHA256}, nil
		case elliptic.P384():
			return []x509.SignatureAlgorithm{x509.ECDSAWithSHA384}, nil
		case elliptic.P521():
			return []x509.SignatureAlgorithm{x509.ECDSAWithSHA512}, nil
		}
		kind = "ECDSA key on another curve than P-256, P-384 and P-521"
	case ed25519.PublicKey:
		return []x509.SignatureAlgorithm{x509.PureEd25519}, nil
	case *rsa.PublicKey:
		known, ok := key.(interface {
			SupportedSignatureAlgorithms() []tls.SignatureScheme
		})
		if !ok {
			return []x509.SignatureAlgorithm{x509.SHA256WithRSA, x509.SHA256WithRSAPSS}, nil
		}
		schemes := known.SupportedSignatureAlgorithms()
		for _, a := range rsaAlgorithms {
			if slices.Contains(schemes, a.scheme) {
				return []x509.SignatureAlgorithm{a.algorithm}, nil
			}
		}
		return nil, errors.New("certificate request: the RSA key signs neither PKCS #1 v1.5 nor PSS with SHA-256 or longer: make a key of another kind, such as ec-p256")
	default:
		kind = fmt.Sprintf("%T", public)
	}
	return nil, fmt.Errorf("certificate request: %s: Kubernetes has no use for it: make a key of another kind, such as ec-p256", kind)
}

// usages are what the certificate is to be for. Only RSA keys encipher others.
func usages(public crypto.PublicKey) []string {
	if _, ok := public.(*rsa.PublicKey); ok {
		return []string{"digital signature", "key encipherment", "client auth"}
	}
	return []string{"digital signature", "client auth"}
}

// parseRequest reads a request in PEM and verifies its signature.
func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("certificate request: is not PEM of the type CERTIFICATE REQUEST")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return csr, nil
}

func equalKeys(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}
