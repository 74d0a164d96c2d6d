// Package socket makes the private listeners of a proxy, and everything that decides who may speak to it.
//
// Two guards stand in front of every request, and neither is trusted alone:
//
//   - The kernel's: a Unix socket of mode 0600 in a directory that belongs to this user alone ([OpenDir]), and the
//     uid of the process at the other end ([PeerUID]), which is compared before any byte is read or written.
//   - TLS: the listener shows a certificate that an [Authority] issued and the client pins, and the client shows a
//     pair that was made for this session ([Authority.ClientPair]).
//
// # One owner
//
// A daemon takes a [Lock] on a file beside its socket, and calls [Listen] while it holds it. The kernel drops the
// lock when the process ends, in whatever way, so there is nothing to clean up after a crash except the socket's
// name. Listen removes such a name, but only if it is a socket of this user and the kernel says that nobody listens
// (ECONNREFUSED). Every other answer, a full backlog's EAGAIN above all, means that somebody is alive there.
// [Listener.Close] removes the name only while it still stands for the listener's own inode.
//
// The race that remains: between the comparison of an inode and the unlink of its name, a process of the same uid
// that ignores the lock can put another socket there. No other user can, because the directory is private.
//
// # Loopback
//
// Clients that cannot dial a Unix socket are served on a loopback TCP port ([ListenLoopback]). Any user of the machine
// can connect to it, or take the port first, so there everything rests on TLS: the client pins the certificate of an
// authority that is kept on disk ([OpenAuthority]) and that is constrained, critically, to loopback names
// (RFC 5280, section 4.2.1.10), and a request without the session's pair gets no further than the handler's 401.
//
// # Systems
//
// Linux and macOS tell the peer's uid (SO_PEERCRED, LOCAL_PEERCRED). Windows does not; there the access control list
// of the directory decides who can reach the socket. macOS answers ECONNREFUSED for a full backlog too, so there the
// lock alone keeps a second owner away.
//
// In a user namespace every uid that is not mapped shows as the overflow uid, 65534. A proxy that itself runs as
// 65534 in such a namespace cannot tell these users from itself, and has only the directory and TLS.
//
// Errors that concern the caller's set-up ([UnsafeError], [AuthorityError], [PeerError]) are one line: the thing, what
// is wrong with it, and what mends it.
package socket
