// Package tpm is the home of keys that never leave their TPM 2.0.
//
// A key lies at a persistent handle, or in a TSS2 PRIVATE KEY file: a PEM block that only the
// TPM it was made by can use, as go-tpm-keyfiles, tpm2-tools and the OpenSSL providers write
// it. [Create] makes both. The package is pure Go and works without cgo.
//
// # One owner
//
// A TPM does one thing at a time and has three slots for keys. Each [Key] has one goroutine
// that owns its connection; it loads the key once, keeps it, and serves a bounded queue. A
// request fails at its deadline whatever the TPM does. A TPM that was restarted, or came back,
// is opened again by the next signature: the key is loaded, its public half compared, and the
// signature tried once more. While the TPM is away, signatures fail at once for 100 ms, growing
// to 2 s, before it is looked for again.
//
// A read from a character device cannot be interrupted. Where the TPM never answers, the
// connection is left to a goroutine of its own, one for each Key at most, which ends when
// the driver gives the command up; Close returns without it.
//
// Every signature is verified before it is handed out. Handles on a device without resource
// manager mean another key after a restart; and a signature that went wrong may give the key
// away (Boneh, DeMillo, Lipton 1997).
//
// # Passwords
//
// A password never goes over the bus as it is. It keys an HMAC session, salted with a storage key of the TPM, so
// that who listens on the bus can neither read it nor guess it from what they heard. The salt
// goes to a key that nobody vouches for: who can exchange the TPM's answers can still guess
// offline. Where no storage key is to be had (the owner hierarchy has a password, and nothing
// lies at 0x81000001) the session is unsalted, which keeps the password off the bus but lets a
// listener guess. To make a key with a password takes an encrypted session, which
// GODEBUG=fips140=only forbids; using one does not.
//
// TPMs lock themselves after a few wrong passwords. None is tried twice: see [signer.Secret].
// A TPM that loses its power while a key with a password is in use may count that, too.
//
// Owner, parent and lockout passwords are not supported. Keys with a policy, with a fixed
// scheme or restricted to the TPM's own statements are refused.
package tpm
