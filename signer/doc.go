// Package signer holds the two contracts between a proxy that forwards requests and
// the parts that say who it is: [RequestSigner] authenticates single requests,
// [Key] authenticates connections.
//
// A RequestSigner gets a [Request], a small view, and returns the header fields to
// set on the request. It cannot rewrite a query or a header, so what is signed is what
// is sent. Signing is the last step before the wire: whoever changes the request
// afterwards breaks the signature.
//
// Four optional interfaces stand beside the contracts. A signer that needs the hash of
// the body says so with [BodyHasher]; one that learns from answers (the server's clock)
// takes them through [ResponseObserver]; one that can sign at once, from what is at hand,
// is a [FieldSigner]; an error that knows which HTTP status the client shall see has a
// method StatusCode() int, as [RequestError] has.
//
// The schemes are packages of their own below this one, and import nothing but this one.
// This package imports the standard library alone.
package signer
