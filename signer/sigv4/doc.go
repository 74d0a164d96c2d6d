// Package sigv4 signs requests with AWS Signature Version 4, and verifies them.
//
// [Signer] signs what it is shown and changes nothing: Authorization, X-Amz-Date,
// X-Amz-Security-Token and X-Amz-Content-Sha256 come back, and [TargetHeader] where it was
// asked for. It makes the signatures of aws-sdk-go-v2's own signer, which the tests hold it
// against, but not its changes: that one sorts the query of the request it is given, takes
// apart IPv6 authorities, and signs hop-by-hop fields. [Signer.SignFields] neither waits nor
// allocates. [Verifier] shares with it the checks and the writing of the canonical form; the
// tests hold each against the other and against the public test suite.
//
// The key of a day is derived once for each set of credentials. It is forgotten when the
// secret, the access key id, the session token or the day (UTC) is another one.
//
// [LoadCredentials] takes the SDK's default chain and keeps what it yields fresh.
//
// # What a signature does not say
//
// SigV4 signs a canonical form. Requests with the same canonical form have the same
// signature, so somebody on the way can exchange one for the other:
//
//   - Repeated query keys are sorted by value: ?command=ls&command=-la and
//     ?command=-la&command=ls are one. So are a query with and without empty pairs, "a" and
//     "a=", "+" and "%20", "%2f" and "%2F".
//   - Values of a repeated header are joined by commas, and runs of spaces count as one.
//   - Under [PathNormalized] and single encoding, different paths are one.
//   - Header fields that SignedHeaders does not name, User-Agent and Accept-Encoding among
//     them, are free.
//   - Under UNSIGNED-PAYLOAD the body is free.
//   - The same request, sent again within the window, is as valid as it was.
//
// This package closes what it can. Impersonate-* fields, which decide who a request acts
// as, are refused where a comma or a run of spaces would make them ambiguous. A raw ";",
// an undecodable "%" and (by default) empty and dot segments are refused, as no two
// implementations agree on them. With Options.BindTarget a further signed field,
// [TargetHeader], holds the SHA-256 of the raw request target, which fixes path and query
// byte for byte at a verifier that looks at it, as [Verifier] does.
package sigv4
