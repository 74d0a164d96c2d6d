// Package integration tests the built execproxy, as a black box, against real
// peers: etcd, kube-apiserver, kube-controller-manager and kubectl, built from
// their Go modules and started once per run on loopback.
//
//	go run ./cmd/build-kube    # once: builds what is missing, about four minutes
//	go test .                  # needs Linux; as root, for the tests with a second user
//
// EXECPROXY_TEST_BIN names another directory for the Kubernetes programs.
// EXECPROXY_TEST_RACE=1 builds execproxy with the race detector.
// EXECPROXY_TEST_KEEP=1 keeps keys and logs, and prints where they are.
//
// A program that is missing fails the run and says so; it is never skipped.
// Tests with a second user are skipped where the run is not root's, but in CI
// (variable CI set) they fail.
package integration
