package daemon

import (
	"crypto/x509"

	"github.com/execproxy/execproxy/signer/watch"
)

// watchAuthority follows the file of the API server's authority until the front ends.
func (f *front) watchAuthority() {
	path := f.config.CertificateAuthority
	f.rotating.Lock()
	first := f.roots
	f.rotating.Unlock()
	err := watch.Run(f.work, watch.Options[*x509.CertPool]{
		Paths: []string{path}, First: first, Equal: (*x509.CertPool).Equal,
		Load: func() (*x509.CertPool, error) { return rootCAs(f.config) },
		Changed: func(_ *x509.CertPool, err error) {
			if err != nil {
				f.d.log.Error("the changed certificate authority is not used, the old one stays", "error", err)
				return
			}
			f.d.log.Info("certificate authority changed", "file", path)
			_ = f.rotate() // it has logged why
		},
	})
	if err != nil {
		f.d.log.Error("the certificate authority is no longer watched", "file", path, "error", err)
	}
}
