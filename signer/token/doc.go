// Package token authenticates requests with a bearer token (RFC 6750) that somebody
// else hands out: another exec credential plugin (KEP-541), or a presigned request to
// AWS STS, which is what EKS takes.
//
// A [Source] gets one credential. A [Cache] in front of it gets the next one ahead of
// expiry, one at a time and bounded in time, serves the one at hand while that fails,
// and is told with [Cache.Refused] when the API server took it no longer. A [Signer]
// sends it with each request.
package token
