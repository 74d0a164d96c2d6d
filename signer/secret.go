package signer

import "context"

// A Secret unlocks a private key in its home: the PIN of a token, the password of a key in
// a TPM. Homes lock themselves after some wrong ones, so none is tried twice.
//
// Its methods are safe for concurrent use.
type Secret interface {
	// Secret returns what unlocks the key. It is the caller's, who wipes it. It fails, with
	// the cure, where there is none to be had, or only the one that was refused.
	Secret(ctx context.Context) ([]byte, error)

	// Refused is told that the home took what Secret returned for wrong. Secret does not
	// return the same again.
	Refused()
}

// An Accepter is a Secret that wants to know that it was right: the home calls Accepted
// after a login that succeeded, as it calls Refused after one that did not. Until then other
// processes that would try the same may have to wait. A home that never calls it does no harm.
type Accepter interface {
	Accepted()
}
