// Package module is the process that a token's PKCS#11 library runs in: [Serve] loads the
// library that package pkcs11 asks for, logs in to one token, and signs with one key.
//
// Only a command that package pkcs11 starts imports it. It needs cgo; a build without it, or
// with the tag nopkcs11, has the same functions, and they say so.
package module
