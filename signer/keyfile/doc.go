// Package keyfile is the home of keys in PEM files.
//
// It reads PKCS#8, SEC 1 and PKCS#1 keys (ECDSA on P-256, P-384 and P-521, RSA, Ed25519)
// and a certificate chain, leaf first; both may lie in one file. What is wrong with a file
// is a [*Error] that names the file and the cure. [Key.Watch] and [Watch] tell when the
// files hold another pair. [Create] makes a key in a new file, and [LoadBare] reads one that has
// no certificate yet.
//
// The private key stays in the memory of the process, and never shows in an error or when a
// [Key] is printed.
package keyfile
