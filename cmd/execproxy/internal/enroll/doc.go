// Package enroll gets client certificates from a cluster's own CertificateSigningRequest
// API (certificates.k8s.io/v1), for keys that never leave their home.
//
// [NewRequest] signs a request (RFC 2986) with any crypto.Signer, [Client.Submit] hands it
// to the API or adopts the one that an earlier process left there, [Client.Wait] waits for
// approval and certificate and checks that the certificate is the key's. A [Renewer] does
// all three again at two thirds of each certificate's life.
//
// The API is spoken over any http.RoundTripper with wire types of our own: a generated
// clientset would cost a plugin that answers in milliseconds most of its start. Nothing a
// server sends is trusted: bodies, lists and events are bounded, what is shown of them is
// one printable line, and every single exchange has an end. Only waiting as such has none
// but its context's.
package enroll
