package signer

import "crypto"

// A Key is a private key and its certificate chain. Rotation hands out a new Key; one
// that was handed out never changes, so it stands for one generation of connections.
//
// Sign is safe for concurrent use. A Key never shows private material: not in errors,
// not when it is printed.
type Key interface {
	crypto.Signer

	// CertificateChain returns the DER certificates, leaf first, without a root where
	// the peer has it. The caller must not change the bytes.
	CertificateChain() [][]byte

	// Close gives up what the key holds (sessions, handles). Sign fails from then on.
	// Closing twice is no error.
	Close() error
}
