package enroll

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"time"
)

func (a *api) approve(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.approveLocked(name)
}

func (a *api) approveLocked(name string) {
	o := a.must(name)
	a.condition(o, "Approved", "KubectlApprove", "This CSR was approved by kubectl certificate approve.")
	if a.signs {
		a.signLocked(o)
	}
}

func (a *api) must(name string) *stored {
	o := a.objects[name]
	if o == nil {
		a.t.Fatalf("there is no request %s", name)
	}
	return o
}

func (a *api) condition(o *stored, kind, reason, message string) {
	o.Status.Conditions = append(o.Status.Conditions, map[string]any{"type": kind, "status": "True", "reason": reason, "message": message,
		"lastUpdateTime": time.Now().UTC().Format(time.RFC3339), "lastTransitionTime": nil})
	a.changed("MODIFIED", o)
}

func (a *api) deny(name, reason, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.condition(a.must(name), "Denied", reason, message)
}

func (a *api) fails(name, reason, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.condition(a.must(name), "Failed", reason, message)
}

func (a *api) delete(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.must(name)
	delete(a.objects, name)
	a.changed("DELETED", o)
}

func (a *api) sign(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.signLocked(a.must(name))
}

// signLocked dates as kube-controller-manager does.
func (a *api) signLocked(o *stored) {
	csr, err := o.parse()
	must(a.t, err)
	ttl := 365 * 24 * time.Hour
	if s := o.Spec.ExpirationSeconds; s != nil {
		n, _ := s.Int64()
		ttl = time.Duration(n) * time.Second
	}
	o.Status.Certificate = a.certificate(csr, ttl)
	a.changed("MODIFIED", o)
}

func (a *api) certificate(csr *x509.CertificateRequest, ttl time.Duration) []byte {
	now := time.Now()
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	template := &x509.Certificate{SerialNumber: serial, RawSubject: csr.RawSubject, PublicKey: csr.PublicKey, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, NotBefore: now.Add(-backdate), NotAfter: now.Add(ttl)}
	if ttl >= shortLife {
		template.NotAfter = template.NotAfter.Add(-backdate)
	}
	if a.issue != nil {
		if text := a.issue(csr, template); text != nil {
			return text
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.caCert, template.PublicKey, a.ca)
	must(a.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
