// Package pkcs11 is the home of keys on PKCS#11 tokens: HSMs, smart cards, SoftHSM.
//
// A key is named by an RFC 7512 URI, see [URI]. [Open] finds it, [Create] makes one. The
// vendor's library never runs in this process: it is loaded by a child, a command that calls
// Serve of package module, and spoken to over the child's standard input and output. So this
// package is pure Go, and whatever the library does (crash, hang, print) costs at most the
// signatures that are under way.
//
// A [Key] mends itself. Where the child died, did not answer within Options.Timeout, or the
// library says that sessions, handles or the token are gone, the child is killed and another
// one opens the same key anew: the public key is compared, and the signature tried once
// more. All that wait share one such reopening. After one that failed, signatures fail at
// once with its error, for 100 ms at first and for 2 s at most.
//
// A PIN that the token refused is never tried again. It is not tried at all where the token
// says that its PIN is locked, or that one try is left and no human typed the PIN.
package pkcs11
