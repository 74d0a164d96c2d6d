// Package integration tests the built execproxy, as a black box, against real
// peers: etcd, kube-apiserver, kube-controller-manager and kubectl, built from
// their Go modules and started once per run on loopback.
//
//	go run ./cmd/build-kube    # once: builds what is missing, about four minutes
//	go test .                  # needs Linux and gcc; as root, for the tests with a second user
//
// Keys in tokens and TPMs are in real ones as far as software is: SoftHSM2, p11-kit
// and swtpm, from Debian's packages softhsm2, opensc, p11-kit, p11-kit-modules,
// swtpm and tpm2-tools. Certificates for them are approved by the tests and signed
// by kube-controller-manager, which starts with the first test that needs it.
//
// Streams go to a real node: containerd, runc and a kubelet, with pods of busybox,
// from Debian's packages containerd, runc, containernetworking-plugins and
// busybox-static. It starts with the first test that needs it, in namespaces of
// its own, and leaves nothing on the machine. Where there are no cgroups for it,
// kubelet's own streaming server takes its place, and tests of the rest of a node
// are skipped. TestIdleStreams waits for six minutes, beside the others.
//
// What no library would send goes over connections that are driven frame by frame,
// on the clients' side (frames_test.go) and on the server's (frameserver_test.go).
//
// EXECPROXY_TEST_BIN names another directory for the Kubernetes programs.
// EXECPROXY_TEST_RACE=1 builds execproxy with the race detector.
// EXECPROXY_TEST_FIPS=1 builds it with Go's certified FIPS 140-3 module, in force.
// EXECPROXY_TEST_KEEP=1 keeps keys and logs, and prints where they are.
//
// A program of Kubernetes' that is missing fails the run and says so. Tests that
// need one of Debian's packages are skipped where it is not installed, those with a
// second user where the run is not root's; in CI (variable CI set) they fail.
package integration
