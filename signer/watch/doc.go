// Package watch tells when files hold something else: a key and its certificate, a token's
// URI, whatever a function reads from them.
//
// It watches directories, as editors and Kubernetes replace files rather than write them,
// those of every symbolic link on the way too, and looks by itself now and then, as some
// file systems send no events.
package watch
