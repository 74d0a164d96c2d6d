// Package pin knows where the PIN of a token or the password of a key comes from: a file, an
// open descriptor, a systemd credential, an askpass program, the terminal, or a value that
// is already here.
//
// Tokens and TPMs lock themselves after some wrong ones, for good or for hours, and a client
// runs its plugin again and again. So a wrong one is tried once, by all processes of this
// user together: what was refused is remembered beside the state, and while one process
// tries the others wait for what comes of it.
//
// The plugin process may ask the user. A daemon may not: it re-reads files, and gets
// everything else from the plugin ([Source.Handover], [Options].Value).
//
// Values are wiped by whoever holds them last: a Source wipes its own, and the caller of
// [Source.Secret] and [Source.Handover] wipes the copy it got ([Wipe]). None is ever printed:
// not by an error, not by a Source, not in a log.
package pin
