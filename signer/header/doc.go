// Package header sets fixed header fields on every request: a bearer token from a file, a
// tenant, whatever an authenticating proxy in front of a server wants to see.
//
// A value comes from the configuration ("X-Tenant=blue") or from a file
// ("Authorization=@/run/secrets/token"), which is read again when it changes. A file that
// is gone, empty or broken is an error; the value it had before is not used.
package header
